"""Every setting with its default and its meaning: as a TOML file, and as the page docs/settings.md."""

from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from infra.run.settings import Settings, is_section

PAGE = """# Settings

A setting can be given as a flag, as an environment variable or in one TOML file: `--set stream.batch=1024`,
`FRESHET_STREAM__BATCH=1024`, or `batch = 1024` under `[stream]` in the file given with `--config`. A flag overrides the
environment, which overrides the file; all three override the preferences of a command, such as the links of
`freshet demo`. In a flag or variable a list is written `5,5,0.5`, and no value is written `none`. A `FRESHET_` variable
that sets nothing is an error.

`freshet settings` prints the effective settings, `freshet settings --defaults` a file with all of them, and
`freshet settings --markdown` this page.
"""
TYPES = {str: "text", int: "integer", float: "number", bool: "true, false", Path: "path", SecretStr: "secret"}


def sections() -> Iterator[tuple[str, dict[str, FieldInfo]]]:
    """The settings without a section, under the name "", then those of each section."""
    top = Settings.model_fields
    yield "", {name: field for name, field in top.items() if not is_section(field)}
    for name, field in top.items():
        if is_section(field):
            yield name, field.annotation.model_fields  # type: ignore[union-attr]


def describe_fields() -> str:
    """Every setting as a TOML file that sets each to its default."""
    lines: list[str] = []
    for section, fields in sections():
        lines += ["", f"[{section}]"] if section else []
        for name, field in fields.items():
            default = field.get_default()
            lines += [f"# {_about(field)}", f"# {name} =" if default is None else f"{name} = {_text(default)}"]
    return "\n".join(lines)


def settings_page() -> str:
    """Every setting as a page in Markdown, one table a section."""
    lines = [PAGE]
    for section, fields in sections():
        title = f"## `[{section}]`" if section else "## The run"
        lines += [title, "", "| setting | values | default | meaning |", "|---|---|---|---|"]
        for name, field in fields.items():
            cells = f"`{section}.{name}`" if section else f"`{name}`", _values(field.annotation), _default(field)
            lines.append(f"| {' | '.join(cells)} | {_about(field).replace('|', chr(92) + '|')} |")
        lines.append("")
    return "\n".join(lines).rstrip()


def _about(field: FieldInfo) -> str:
    return " ".join((field.description or "").split())


def _text(default: Any) -> str:
    """A default in TOML syntax."""
    match default:
        case bool():
            return str(default).lower()
        case int() | float():
            return repr(default)
        case tuple():
            return "[" + ", ".join(repr(item) for item in default) + "]"
    return f'"{default}"'


def _default(field: FieldInfo) -> str:
    default = field.get_default()
    if default is None or default == ():
        return "(none)"
    items = default if isinstance(default, tuple) else (default,)
    return f"`{','.join(str(item).lower() if isinstance(item, bool) else str(item) for item in items)}`"


def _values(kind: Any) -> str:
    """The values that a setting may have, in a few words."""
    origin = get_origin(kind)
    inner = get_args(kind)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin is Annotated:
        return _values(inner[0])
    if origin is tuple:
        return f"list of {_values(inner[0])}"
    if origin in (Union, UnionType):
        return _values(next(part for part in inner if part is not NoneType))
    return TYPES[kind]

"""Settings that a program gives by name, as the command line takes them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ingest.schema import BUILT_IN


def as_overrides(settings: Mapping[str, Any]) -> list[str]:
    """Settings by name as ``--set`` takes them."""
    return [f"{name}={_as_text(value)}" for name, value in settings.items()]


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def schema_setting(schema: str | Path) -> str:
    """The setting of a schema: a built-in one, or a TOML file, wherever the process is started."""
    return f"stream.schema_name={schema if schema in BUILT_IN else Path(schema).absolute()}"

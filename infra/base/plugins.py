"""Plug-ins: classes of other packages, by the name of an entry point or as ``module:Name``.

They are code that runs with the rights of the run. Python must find it (``pip install``, or a folder in PYTHONPATH);
nothing is ever read from a run's folder. Finding one, and its digest, loads no code; ``load_plugin`` does.
"""

import importlib
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from infra.base.errors import ConfigError

PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
"""A class of a module, as in ``my_package.models:Tower``."""
MODELS = "freshet.models"
POLICIES = "freshet.policies"
SOURCES = "freshet.sources"
"""Groups of entry points."""


class WrittenPlugin(NamedTuple):
    """A plug-in as it is written in a setting, and what follows it there, separated by colons."""

    name: str
    """An entry point, or ``module:Name``."""
    parameters: Sequence[str]


@cache
def installed(group: str) -> dict[str, str]:
    """The plug-ins that installed packages offer: ``module:Name`` by name."""
    return {entry.name: entry.value for entry in entry_points(group=group)}


def find_plugin(kind: str, group: str, name: str, built_in: Iterable[str] = ()) -> str:
    """The ``module:Name`` of a plug-in; raises ConfigError if the name is neither that nor one of an installed package.

    kind: what it is, in a message. built_in: names that need no plug-in, for that message.
    """
    if PATH.fullmatch(name):
        return name
    known = installed(group)
    if name in known:
        return known[name]
    names = [*built_in, *sorted(known)]
    meant = get_close_matches(name, names, n=1)
    raise ConfigError(
        f"there is no {kind} {name!r}; expected one of {', '.join(names)}, or a class as module:Name; "
        + (f"write {meant[0]!r}, or install" if meant else "correct it, or install")
        + " the package that has it"
    )


def find_written(group: str, name: str, parameters: Sequence[str]) -> WrittenPlugin | None:
    """The plug-in in words that were separated by colons; None if no package has it. Loads no code."""
    if name in installed(group):
        return WrittenPlugin(name, parameters)
    path = ":".join((name, *parameters[:1]))
    return WrittenPlugin(path, parameters[1:]) if PATH.fullmatch(path) and _find_top(path) is not None else None


def load_plugin(kind: str, path: str) -> Any:
    """Imports the module and returns what it calls by that name; raises ConfigError if that fails for any reason."""
    module, _, name = path.partition(":")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise ConfigError(
                f"{kind} {path!r} cannot be loaded: there is no module {error.name!r}; expected one that Python finds; "
                "install its package (pip install -e FOLDER), or set PYTHONPATH to its folder"
            ) from error
        raise _broken(kind, path, error) from error
    except Exception as error:  # whatever the module does when it is loaded
        raise _broken(kind, path, error) from error
    if not hasattr(found, name):
        meant = get_close_matches(name, dir(found), n=1)
        raise ConfigError(
            f"{kind} {path!r} cannot be loaded: module {module!r} has no {name!r}; expected a class of that name; "
            + (f"write {module}:{meant[0]}" if meant else "correct the name")
        )
    return getattr(found, name)


def describe_failure(error: BaseException) -> str:
    """Kind and first line of an error, for a message of one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _broken(kind: str, path: str, error: BaseException) -> ConfigError:
    return ConfigError(
        f"{kind} {path!r} cannot be loaded: {describe_failure(error)}; expected a module that can be imported; try it "
        f"with: python -c 'import {path.partition(':')[0]}'"
    )


def code_digest(path: str) -> str:
    """16 hex digits that are equal if the code is: all Python files of the top-level package, or the module's one file.

    Loads nothing. ``missing`` if Python does not find it.
    """
    spec = _find_top(path)
    if spec is None:
        return "missing"
    digest = xxhash.xxh3_64()
    for folder in [Path(each) for each in spec.submodule_search_locations or ()]:
        for file in sorted(folder.rglob("*.py")):
            digest.update(f"{file.relative_to(folder).as_posix()}\0".encode())
            digest.update(file.read_bytes())
    if not spec.submodule_search_locations and spec.origin is not None:
        digest.update(Path(spec.origin).read_bytes())
    return digest.hexdigest()


def _find_top(path: str) -> ModuleSpec | None:
    """Where Python finds the top-level package or module of a plug-in; None: nowhere."""
    try:
        return find_spec(path.partition(":")[0].partition(".")[0])
    except ValueError:  # a program, or a notebook: it is no module
        return None

"""The result of one check of the checker."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import msgspec

from infra.base.errors import FileUnusable, FreshetError, NotStored

Given = ParamSpec("Given")
REPLAY = "replay"
"""Name of the one finding of a replay that could not be made."""


class NotChecked(FreshetError):
    """A check cannot be made; the message says why."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that was checked."""

    name: str
    ok: bool | None
    """Whether it holds; None: it could not be checked."""
    found: str


def check(name: str) -> Callable[[Callable[Given, str]], Callable[Given, Finding]]:
    """Turns a function into a check: it returns what it found, and raises an error of ours for a violation."""

    def named(function: Callable[Given, str]) -> Callable[Given, Finding]:
        @wraps(function)
        def checked(*values: Given.args, **named: Given.kwargs) -> Finding:
            try:
                return Finding(name, True, function(*values, **named))
            except FreshetError as error:
                could_not = isinstance(error, NotChecked) or is_unreadable(error)
                return Finding(name, None, f"not checked: {error}") if could_not else Finding(name, False, str(error))

        return checked

    return named


def is_unreadable(error: FreshetError) -> bool:
    """Whether the system refused to read an existing file, so that its contents are not known."""
    is_refused = isinstance(error, FileUnusable) and isinstance(error.__cause__, OSError)
    return is_refused and not isinstance(error, NotStored)


class Violated(FreshetError):
    """Something that a run guarantees does not hold."""

"""What a check of the checker comes to."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import msgspec

from infra.errors import FreshetError

Given = ParamSpec("Given")


class NotChecked(FreshetError):
    """A check cannot be made; the message says why."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that was checked."""

    name: str
    ok: bool | None
    """None: it could not be checked"""
    found: str


def check(name: str) -> Callable[[Callable[Given, str]], Callable[Given, Finding]]:
    """Makes a check of a function that says what it found, and raises an error of ours for a violation."""

    def named(function: Callable[Given, str]) -> Callable[Given, Finding]:
        @wraps(function)
        def checked(*values: Given.args, **named: Given.kwargs) -> Finding:
            try:
                return Finding(name, True, function(*values, **named))
            except NotChecked as error:
                return Finding(name, None, f"not checked: {error}")
            except FreshetError as error:
                return Finding(name, False, str(error))

        return checked

    return named


class Violated(FreshetError):
    """Something that a run promises does not hold."""

"""Converts values to what both databases can hold."""

import math
from collections.abc import Iterable
from typing import Any


def finite(number: float) -> float | None:
    """Returns the number; None if it is not finite: JSON has no NaN, and SQLite stores it as null."""
    return number if math.isfinite(number) else None


def plain(value: Any) -> Any:
    """Returns the value without what PostgreSQL or JSON cannot hold: zero bytes in text, infinite numbers and NaN."""
    if isinstance(value, str):
        return value.replace("\x00", "\ufffd")
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, dict):
        return {plain(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return [plain(inner) for inner in value]
    return value

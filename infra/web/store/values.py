"""Values as both databases can hold them."""

import math
from collections.abc import Iterable
from typing import Any


def finite(number: float) -> float | None:
    """A number, unless it is none: JSON has no NaN, and SQLite takes it for null."""
    return number if math.isfinite(number) else None


def plain(value: Any) -> Any:
    """The same without what PostgreSQL or JSON cannot hold: zero bytes in texts, numbers that are not finite."""
    if isinstance(value, str):
        return value.replace("\x00", "\ufffd")
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, dict):
        return {plain(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return [plain(inner) for inner in value]
    return value

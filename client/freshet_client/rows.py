"""Rows in the forms in which people have them, as JSON: dicts, and tables of pandas, polars or Arrow.

None of those libraries is imported; a table is recognised by its methods. NaN, NaT and null are absent values.
"""

import json
import math
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from typing import Any

from freshet_client.errors import InvalidInput

Rows = Any
"""A dict, an iterable of dicts, or a table of pandas, polars or Arrow."""
FIELDS = "fields"


def rows_of(rows: Rows) -> list[dict[str, Any]]:
    """The rows as dicts; raises InvalidInput for anything else."""
    if isinstance(rows, Mapping):
        found: Any = [rows]
    elif hasattr(rows, "to_pylist"):
        found = rows.to_pylist()
    elif hasattr(rows, "to_dicts"):
        found = rows.to_dicts()
    elif hasattr(rows, "to_dict") and hasattr(rows, "columns"):
        found = rows.to_dict("records")
    else:
        found = list(rows) if isinstance(rows, Iterable) and not isinstance(rows, str | bytes) else [rows]
    for place, row in enumerate(found):
        if not isinstance(row, Mapping):
            raise InvalidInput(
                f"row {place} is {type(row).__name__}; expected dicts, or a table of pandas, polars or Arrow"
            )
    return found if isinstance(found, list) else list(found)


def sample_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row to be predicted: an event as it is, or its fields."""
    if isinstance(row.get(FIELDS), Mapping):
        return {**row, FIELDS: plain_fields(row[FIELDS])}
    return {FIELDS: plain_fields(row)}


def event_of(row: Mapping[str, Any], label: str, event_time: str) -> dict[str, Any]:
    """A row to be trained: an event as it is, or one whose columns of label and time have these names.

    An event without a time happened now.
    """
    if isinstance(row.get(FIELDS), Mapping):
        event = {**row, FIELDS: plain_fields(row[FIELDS])}
    else:
        fields = {name: value for name, value in row.items() if name not in (label, event_time)}
        event = {"label": plain(row.get(label)), "event_time": row.get(event_time), FIELDS: plain_fields(fields)}
    seconds = seconds_of(event.get("event_time"))
    clicked = event.get("label")
    return {**event, "label": int(clicked) if isinstance(clicked, bool) else clicked, "event_time": seconds}


def seconds_of(value: Any) -> Any:
    """A time as seconds since 1970; now if there is none."""
    value = plain_time(value)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return time.time()
    if isinstance(value, datetime):
        return (value if value.tzinfo is not None else value.replace(tzinfo=UTC)).timestamp()
    return plain(value)


def plain_time(value: Any) -> Any:
    """Without what only pandas has: its NaT is unlike itself, its timestamps are datetimes."""
    return None if value is not None and value != value else value


def plain_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that have a value."""
    return {str(name): found for name, value in fields.items() if (found := plain(value)) is not None}


def plain(value: Any) -> Any:
    """A value that JSON has; None for an absent one."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, Mapping):
        return plain_fields(value)
    if isinstance(value, list | tuple | set):
        return [plain(member) for member in value]
    if hasattr(value, "tolist"):  # a number or an array of numpy
        return plain(value.tolist())
    if value != value:
        return None
    return value.isoformat() if isinstance(value, date) else str(value)


def body_of(rows: list[dict[str, Any]]) -> bytes:
    """The JSON of a request; raises InvalidInput for what JSON cannot hold."""
    try:
        return json.dumps(rows, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"rows cannot be sent as JSON: {error}; expected texts, finite numbers and lists") from error

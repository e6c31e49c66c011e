"""Rows of tables as events: times, labels and values in the forms in which people write them."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ingest.producing.tables import event_of, lines_as_events, read_events
from ingest.schema import FileColumns

COLUMNS = FileColumns("click", "at")


def decoded(event: bytes | None) -> dict[str, Any]:
    assert event is not None
    found: dict[str, Any] = json.loads(event)
    return found


@pytest.mark.parametrize(
    ("value", "unit", "seconds"),
    [
        (12, "s", 12.0),
        ("1500", "ms", 1.5),
        (2_000_000, "us", 2.0),
        ("1970-01-01T00:01:00", "s", 60.0),
        ("1970-01-01 02:00:00+02:00", "s", 0.0),
        (datetime(1970, 1, 2, tzinfo=UTC), "s", 86400.0),
        ("soon", "s", "soon"),
        (None, "s", None),
    ],
)
def test_times_are_read_in_every_form(value: Any, unit: Any, seconds: Any) -> None:
    event = decoded(event_of({"at": value}, 0, FileColumns("click", "at", unit)))
    assert event.get("event_time") == seconds


@pytest.mark.parametrize(
    ("value", "label"), [(True, 1), ("0", 0), (1.0, 1), ("no", 0), ("maybe", "maybe"), (None, None)]
)
def test_labels_are_read_in_every_form(value: Any, label: Any) -> None:
    assert decoded(event_of({"click": value}, 0, COLUMNS)).get("label") == label


def test_values_that_json_lacks_become_those_that_it_has() -> None:
    row = {"price": Decimal("1.5"), "gone": float("nan"), "day": datetime(2026, 1, 2), "far": float("inf"), "t": (1, 2)}
    fields = {"price": 1.5, "gone": None, "day": "2026-01-02T00:00:00", "far": "inf", "t": [1, 2]}
    assert decoded(event_of(row, 7, FileColumns("click"))) == {"event_time": 7.0, "fields": fields}


def test_a_row_of_csv_that_does_not_fit_is_passed_on(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("\ufeffclick;user;price\n1;u;\n1;u\n\n0;v;2,5\n")
    first, broken, last = read_events(file, FileColumns("click"))
    assert decoded(first) == {"event_time": 0.0, "label": 1, "fields": {"user": "u"}}
    assert broken == b"1;u"
    assert decoded(last)["fields"] == {"user": "v", "price": "2,5"}


def test_times_of_parquet_may_have_nanoseconds(tmp_path: Path) -> None:
    times = pa.array([1_500_000_001], pa.timestamp("ns"))
    pq.write_table(pa.table({"at": times, "click": [True], "tags": [["a"]]}), tmp_path / "a.parquet")
    (event,) = read_events(tmp_path / "a.parquet", COLUMNS)
    assert decoded(event) == {"event_time": 1.5, "label": 1, "fields": {"tags": ["a"]}}


def test_lines_that_are_events_or_no_objects_are_passed_on() -> None:
    event, broken = b'{"event_time":1,"label":0,"fields":{}}', b"[1]"
    first, second, third, fourth = lines_as_events([event, None, broken, b'{"click":1,"at":3,"user":"u"}'], COLUMNS)
    assert (first, second, third) == (event, None, broken)
    assert decoded(fourth) == {"event_time": 3.0, "label": 1, "fields": {"user": "u"}}

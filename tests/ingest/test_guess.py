"""Whatever the values of a file are, the schema that is guessed from them takes every event of it."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.errors import InputError
from ingest.guess import guess_schema
from ingest.schema import parse_schema
from ingest.survey import Survey

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=0, max_size=8)
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
    | st.sampled_from(["", "1.5", "-3", "1e300", "1_000", "nan", "x" * 300])
    | st.lists(st.text(max_size=3, alphabet="abc") | st.integers(0, 9), max_size=40)
    | st.dictionaries(st.sampled_from("ab"), st.integers(0, 3), max_size=1)
)
COLUMNS = st.dictionaries(NAMES, st.lists(VALUES, min_size=4, max_size=4), min_size=1, max_size=5)
DATES = ["2026-01-01", "2026-01-02", "2026-01-03"]


@settings(max_examples=60, deadline=None)
@given(COLUMNS)
def test_every_event_fits_the_schema_that_is_guessed_from_it(columns: dict[str, list[Any]]) -> None:
    rows = [{name: values[row] for name, values in columns.items()} for row in range(4)]
    events = [json.dumps({"event_time": 1.0, "label": at % 2, "fields": row}) for at, row in enumerate(rows)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "events.jsonl"
        file.write_text("\n".join(events))
        try:
            guess = guess_schema(file, None, None, 100)
        except InputError:  # there is nothing to learn from
            return
    survey = Survey(parse_schema(guess.toml, "guessed"))
    survey.add([event.encode() for event in events])
    assert survey.findings().rejects == ()


@pytest.mark.parametrize(
    ("columns", "time"),
    [
        ({"when": ["2026-01-01 10:00:00", "2026-01-01T10:00:00", "2026-01-02 09:30:00+02:00"]}, "when"),
        ({"when": DATES, "ts": ["5", "6", "7"]}, "ts"),
        ({"born": ["1990-05-01", "1971-01-31", "2001-12-24"]}, ""),
        (
            {"opened": ["2026-01-01", "2026-01-02", "2026-01-03"], "sent": ["2026-01-01", "2026-01-02", "2026-01-03"]},
            "",
        ),
        ({"number": ["20260101", "20260102", "20260103"], "when": ["2026-01-01", "", "2026-01-03"]}, ""),
        ({"constant": DATES[:1] * 3}, ""),
    ],
)
def test_the_only_column_of_dates_that_never_go_back_is_the_time(
    columns: dict[str, list[str]], time: str, tmp_path: Path
) -> None:
    rows = zip(*columns.values(), strict=True)
    lines = [
        ",".join(["click", "item", *columns]),
        *(",".join([str(at % 2), f"i{at}", *row]) for at, row in enumerate(rows)),
    ]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    found = guess_schema(tmp_path / "log.csv", label=None, time=None, limit=100)
    assert found.columns is not None
    assert found.columns.time == time

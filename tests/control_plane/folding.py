"""What the tables of a run must hold, computed from its journal record by record, in plain Python.

This is written without the code that projects a journal, so that one is a check of the other.
"""

import asyncio
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Table, select

from api.store.tables import LEVELS
from dispatch.journal.log import JournalTail, SegmentGone, read_records
from dispatch.journal.records import (
    AlphaChanged,
    AnyRecord,
    Begun,
    CheckpointBegun,
    CheckpointTaken,
    Commanded,
    Ended,
    Faulted,
    GenerationStarted,
    Redecided,
    StepDecided,
    StepDone,
    Stopped,
)
from infra.web.store.engine import Database
from infra.web.store.tables import SqlTable
from ingest.errors import LogCorrupt

Row = dict[str, Any]
Rows = dict[Any, Row]
"""by primary key without the run"""
KEYS = {
    "generations": ("number",),
    "steps": ("level", "bucket"),
    "alpha_changes": ("cursor", "place"),
    "checkpoints": ("number",),
    "faults": ("cursor", "place"),
    "events": ("cursor", "place"),
    "commands": ("id",),
}
SUMMED = ("steps", "samples", "clicks", "loss", "seconds", "decide_seconds", "moved_bytes")
PRECISION = 1e-9


class Frame(NamedTuple):
    """Records that were appended together."""

    cursor: int
    records: list[AnyRecord]


def read_journal(folder: Path) -> list[Frame]:
    """All of a journal that nobody writes any more, and from which nothing was dropped."""
    frames = [Frame(*each) for each in _frames(folder)]
    assert [record for frame in frames for record in frame.records] == list(read_records(folder))
    return frames


def cursor_of(folder: Path) -> int:
    """Of a journal that may be being written."""
    return max((cursor for cursor, _ in _frames(folder)), default=0)


def _frames(folder: Path) -> Iterator[tuple[int, list[AnyRecord]]]:
    with suppress(LogCorrupt, SegmentGone):  # where it ends
        yield from JournalTail(folder, 0).read(1 << 62)


class Folded:
    """The tables of one run."""

    def __init__(self, frames: list[Frame]) -> None:
        self.run: Row = {"state": "seen", "cursor": 0}
        self.tables: dict[str, Rows] = {name: {} for name in KEYS}
        for cursor, records in frames:
            for place, record in enumerate(records):
                self._add(record, cursor, place)
            self.run["cursor"] = cursor
        self._sum_up()

    def _add(self, record: AnyRecord, cursor: int, place: int) -> None:
        if not isinstance(record, StepDecided | StepDone):
            self.tables["events"][cursor, place] = event(record, cursor, place)
        key, at = (cursor, place), getattr(record, "at_seconds", 0.0) or None
        match record:
            case Begun(topic=topic, code=code):
                self.run.update(state="running", topic=topic, code=code, begun_at=at, ended_at=None)
            case GenerationStarted():
                self.run.update(state="running", ended_at=None)
                self._enter("generations", (record.number,), record, cursor, at, "replicas")
            case CheckpointBegun():
                self._checkpoint(record, cursor, "begun", at)
            case CheckpointTaken():
                self._checkpoint(record, cursor, "taken", at)
            case Faulted():
                self.tables["faults"][key] = named(record) | {"cursor": cursor, "place": place, "at": at}
            case AlphaChanged():
                row = named(record) | {"cursor": cursor, "place": place, "at": at, "mode": "auto", "actor": ""}
                self.tables["alpha_changes"][key] = row
            case Commanded():
                self._command(record, key)
            case Stopped() | Ended():
                self.run.update(state="stopped" if isinstance(record, Stopped) else "ended", ended_at=at)
            case _:
                self._step(record)

    def _enter(self, table: str, key: Any, record: AnyRecord, cursor: int, at: float | None, *left_out: str) -> None:
        row = named(record) | {"cursor": cursor, "at": at}
        self.tables[table][key] = {name: value for name, value in row.items() if name not in left_out}

    def _checkpoint(self, record: CheckpointBegun | CheckpointTaken, cursor: int, state: str, at: float | None) -> None:
        positions = {
            str(partition): {"offset": position.offset, "index": position.index}
            for partition, position in record.positions.items()
        }
        row = {"number": record.number, "step": record.step, "samples": record.samples, "positions": positions}
        self.tables["checkpoints"][record.number,] = row | {"state": state, "cursor": cursor, "at": at}

    def _command(self, record: Commanded, key: tuple[int, int]) -> None:
        cursor, place = key
        told = {"verb": record.verb, "worker": record.worker, "actor": record.actor, "reason": record.reason}
        answer = {"state": "done", "text": record.text, "cursor": cursor, "done_at": record.at_seconds}
        assert (record.id,) not in self.tables["commands"], f"command {record.id} has happened twice"
        self.tables["commands"][record.id,] = {"id": record.id, "value": record.value} | told | answer
        if record.verb == "alpha":
            is_auto = record.value == "auto"
            self.tables["alpha_changes"][key] = {
                **{"cursor": cursor, "place": place, "step": record.step, "at": record.at_seconds},
                **{"alpha": None if is_auto else float(record.value), "mode": "auto" if is_auto else "manual"},
                **{"backend": "", "reason": record.reason, "readings": {}, "actor": record.actor},
            }

    # ── steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────
    def _step(self, record: AnyRecord) -> None:
        steps = self.tables["steps"]
        match record:
            case StepDecided():
                row = dict.fromkeys(SUMMED, 0) | {"samples": record.manifest.samples, "alpha": record.alpha}
                at = {"level": 1, "bucket": record.step, "first_step": record.step, "last_step": record.step}
                steps[1, record.step] = row | at | {"first_at": None, "last_at": None}
            case StepDone():
                assert record.figures is not None
                figures = msgspec.to_builtins(record.figures)
                when = figures.pop("at_seconds")
                steps[1, record.step] |= figures | {"steps": 1, "first_at": when, "last_at": when}
            case Redecided():
                self.tables["steps"] = {key: row for key, row in steps.items() if key[1] <= record.step}
                for checkpoint in self.tables["checkpoints"].values():
                    if checkpoint["step"] > record.step:
                        checkpoint["state"] = "void"

    def _sum_up(self) -> None:
        """Coarser levels, each from the single steps."""
        single = [row for row in self.tables["steps"].values() if row["steps"]]
        for level in LEVELS[1:]:
            for bucket in {row["bucket"] // level for row in single}:
                together = [row for row in single if row["bucket"] // level == bucket]
                self.tables["steps"][level, bucket] = summed(together) | {"level": level, "bucket": bucket}


def summed(rows: list[Row]) -> Row:
    sums: Row = {name: math.fsum(row[name] for row in rows) for name in SUMMED}
    sums |= {"first_step": rows[0]["first_step"], "last_step": rows[-1]["last_step"]}
    sums |= {"first_at": min(row["first_at"] for row in rows), "last_at": max(row["last_at"] for row in rows)}
    return sums | {"alpha": math.fsum(row["alpha"] for row in rows) / len(rows)}


def named(record: AnyRecord) -> Row:
    """Its fields by their present names, without tag and time."""
    fields: Row = msgspec.to_builtins(record, str_keys=True)
    present = {"timeline" if name == "line" else name: value for name, value in fields.items()}
    return {name: value for name, value in present.items() if name not in ("is", "at_seconds")}


def event(record: AnyRecord, cursor: int, place: int) -> Row:
    kind = msgspec.to_builtins(record)["is"].replace("cut", "checkpoint")
    at = getattr(record, "at_seconds", 0.0) or None
    return {"cursor": cursor, "place": place, "kind": kind, "body": named(record), "at": at}


# ── comparing ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def read_tables(url: str, run: str) -> dict[str, Rows]:
    """What a database holds of a run; the run itself under its name."""

    async def read() -> dict[str, Rows]:
        database = Database(url)
        try:
            async with database.reading() as connection:
                found = {}
                for name, table in SqlTable.metadata.tables.items():
                    if name in (*KEYS, "runs"):
                        column = table.c["name" if name == "runs" else "run"]
                        rows = (await connection.execute(select(table).where(column == run))).mappings()
                        found[name] = _by_key(table, name, [dict(row) for row in rows])
                return found
        finally:
            await database.close()

    return asyncio.run(read())


def _by_key(_table: Table, name: str, rows: list[Row]) -> Rows:
    return {tuple(row[part] for part in KEYS.get(name, ("name",))): row for row in rows}


def differences(url: str, run: str, frames: list[Frame]) -> list[str]:
    """Where a database tells something else than the journal; of commands those that were given through it."""
    folded, found = Folded(frames), read_tables(url, run)
    different = list(_compare("runs", {(run,): folded.run}, found["runs"]))
    for name, expected in folded.tables.items():
        if name == "commands":
            expected = {key: row for key, row in expected.items() if key in found[name]}
            found[name] = {key: row for key, row in found[name].items() if row["state"] == "done"}
            found[name] = {key: row for key, row in found[name].items() if row["verb"] != "add"}
        different += _compare(name, expected, found[name])
    return different


def _compare(table: str, expected: Rows, found: Rows) -> Iterator[str]:
    for key in sorted(expected.keys() ^ found.keys()):
        yield f"{table} {key}: {'missing' if key in expected else 'too many'}"
    for key in expected.keys() & found.keys():
        for name, value in expected[key].items():
            if not is_same(value, found[key][name]):
                yield f"{table} {key}: {name} is {found[key][name]!r}; the journal has {value!r}"


def is_same(one: Any, other: Any) -> bool:
    """Equal but for how sums are rounded."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, float | int) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=PRECISION, abs_tol=PRECISION)
    return bool(one == other)

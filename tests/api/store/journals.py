"""Journals for tests, as a feed hands them out, and what they come to: a fold in plain Python, record by record."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest

from api.store.tables import LEVELS
from dispatch.feed.page import FeedPage, PlacedRecord
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
    StepFigures,
    Stopped,
)
from ingest.batches.manifest import Manifest
from ingest.streams.position import Position

Frame = Sequence[AnyRecord]
Frames = Sequence[Frame]
Row = dict[str, Any]
SUMMED = ("steps", "samples", "clicks", "seconds", "decide_seconds", "moved_bytes")
WHEN_READ = pytest.approx(time.time(), abs=86_400)
"""what no record tells the time of"""


# ── records ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def begun(run: str = "run") -> Begun:
    return Begun(run, "log:clicks", {0: Position(3)}, {"seed": "0"}, "d", ("cpu",), at_seconds=5.0, code="0.1.0")


def generation(number: int, base: int | None = None) -> GenerationStarted:
    return GenerationStarted(number, ("a", "b"), True, 0, base, "because", at_seconds=6.0 + number)


def decided(step: int, alpha: float = 0.5, samples: int = 8) -> StepDecided:
    return StepDecided(Manifest("run", 0, step, (), samples, 0), b"", alpha, 1)


def figures(step: int, loss: float = 1.5) -> StepFigures:
    return StepFigures(100.0 + step, 0.25, 0.125, 8, 3, loss, 1000)


def done(step: int, loss: float = 1.5) -> StepDone:
    return StepDone(step, 7, figures(step, loss))


def checkpoint_begun(number: int, step: int, at_seconds: float = 49.0) -> CheckpointBegun:
    known = 8 * step, begun(), generation(0)
    return CheckpointBegun(number, step, {0: Position(9, 1)}, *known, at_seconds=at_seconds)


def checkpoint_taken(number: int, step: int) -> CheckpointTaken:
    return CheckpointTaken(number, step, {0: Position(9, 1)}, 8 * step, 50.0)


def commanded(name: str, verb: str = "pause", value: str = "", step: int = 1, at_seconds: float = 60.0) -> Commanded:
    return Commanded(name, verb, "", step, "it was done", value, "ann", "a test", at_seconds)


def trained(first: int, last: int) -> list[Frame]:
    """Frames of steps, each decided and then trained."""
    return [[decided(step)] if part == 0 else [done(step)] for step in range(first, last + 1) for part in (0, 1)]


# ── pages ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def page(frames: Frames, after: int = 0, last: int | None = None, journal: str = "") -> FeedPage:
    """What a feed answers: the records after one cursor, up to another; journal: its identity."""
    end = len(frames) if last is None else last
    chosen = tuple(PlacedRecord(number + 1, one) for number in range(after, end) for one in frames[number])
    return FeedPage(after, end, len(frames), chosen, journal)


# ── what a journal comes to ───────────────────────────────────────────────────────────────────────────────────────────
class Reference:
    """The tables of a run, by a fold that knows no pages."""

    def __init__(self, commands: Iterable[str] = ()) -> None:
        self.run: Row = {"state": "seen", "topic": "", "code": "", "begun_at": None, "ended_at": None, "cursor": 0}
        self.steps: dict[int, Row] = {}
        self.generations: dict[int, Row] = {}
        self.alpha_changes: list[Row] = []
        self.checkpoints: dict[int, Row] = {}
        self.faults: list[Row] = []
        self.events: list[Row] = []
        self.last_at: Any = None
        self.commands: dict[str, Row] = {
            name: {"id": name, "state": "pending", "text": "", "cursor": None} for name in commands
        }

    def fold(self, frames: Frames, trimmed: int = 0) -> "Reference":
        if trimmed:
            gap = {"first": 1, "last": trimmed}
            self.events.append({"cursor": trimmed, "place": 0, "kind": "gap", "body": gap, "at": WHEN_READ})
        for number in range(trimmed, len(frames)):
            for place, record in enumerate(frames[number]):
                self._add(record, number + 1, place)
        self.run["cursor"] = len(frames)
        return self

    def _add(self, record: AnyRecord, cursor: int, place: int) -> None:
        key = {"cursor": cursor, "place": place}
        if not isinstance(record, StepDecided | StepDone):
            body = msgspec.json.decode(msgspec.json.encode(record))
            restated = record.generation.at_seconds if isinstance(record, CheckpointBegun) else 0.0
            kind, at = body.pop("is").replace("cut", "checkpoint"), body.pop("at_seconds")
            body |= {"timeline": body.pop("line")} if "line" in body else {}
            self.last_at = at or self.last_at or restated or WHEN_READ
            self.events.append(key | {"kind": kind, "body": body, "at": self.last_at})
        match record:
            case Begun():
                self._begin(record)
            case StepDecided():
                self.steps[record.step] = self._step(record.step, record.alpha, record.manifest.samples)
            case StepDone():
                self._train(record)
            case GenerationStarted():
                self.generations[record.number] = self._generation(record, cursor)
                self.run |= {"state": "running", "ended_at": None}
            case CheckpointBegun():
                if self.run["state"] == "seen":
                    self._begin(record.begun)
                self.generations.setdefault(record.generation.number, self._generation(record.generation, cursor))
                self.checkpoints[record.number] = self._checkpoint(record, "begun", self.last_at, cursor)
            case CheckpointTaken():
                self.checkpoints[record.number] = self._checkpoint(record, "taken", record.at_seconds, cursor)
            case Redecided():
                self._void(record.step)
            case Stopped() | Ended():
                state = "stopped" if isinstance(record, Stopped) else "ended"
                self.run |= {"state": state, "ended_at": record.at_seconds}
            case Commanded() | AlphaChanged() | Faulted():
                self._note(record, key)

    def _note(self, record: Commanded | AlphaChanged | Faulted, key: Row) -> None:
        if isinstance(record, Faulted):
            told = {"kind": record.kind, "text": record.text, "at": record.at_seconds}
            self.faults.append(key | {"step": record.step, "generation": record.generation} | told)
            return
        if isinstance(record, AlphaChanged):
            named = {"alpha": record.alpha, "mode": "auto", "backend": record.backend, "actor": ""}
            self._note_alpha(key | named | {"readings": record.readings}, record)
            return
        if (known := self.commands.get(record.id)) and known["state"] != "done":
            known |= {"state": "done", "text": record.text, "cursor": key["cursor"]}
        if record.verb == "alpha":
            alpha = None if record.value == "auto" else float(record.value)
            mode = "auto" if alpha is None else "manual"
            named = {"alpha": alpha, "mode": mode, "backend": "", "actor": record.actor, "readings": {}}
            self._note_alpha(key | named, record)

    def _note_alpha(self, row: Row, record: Commanded | AlphaChanged) -> None:
        told = {"step": record.step, "reason": record.reason, "at": record.at_seconds}
        self.alpha_changes.append(row | told)

    def _begin(self, record: Begun) -> None:
        told = {"topic": record.topic, "code": record.code, "begun_at": record.at_seconds}
        self.run |= told | {"state": "running", "ended_at": None}

    def _step(self, step: int, alpha: float | None, samples: int) -> Row:
        none = dict.fromkeys(SUMMED, 0) | {"loss": 0.0, "first_at": None, "last_at": None}
        return none | {"first_step": step, "last_step": step, "alpha": alpha, "samples": samples}

    def _train(self, record: StepDone) -> None:
        row = self.steps.setdefault(record.step, self._step(record.step, None, 0))
        row |= {"steps": 1}
        if (told := record.figures) is not None:
            at = told.at_seconds
            row |= {name: getattr(told, name) for name in SUMMED[1:]} | {"first_at": at, "last_at": at}
            row["loss"] = None if told.loss != told.loss else told.loss

    def _generation(self, record: GenerationStarted, cursor: int) -> Row:
        told = {"members": list(record.members), "uses_hub": record.uses_hub, "base": record.base}
        return told | {"number": record.number, "reason": record.reason, "at": record.at_seconds, "cursor": cursor}

    def _checkpoint(self, record: CheckpointBegun | CheckpointTaken, state: str, at: float | None, cursor: int) -> Row:
        where = {str(number): msgspec.to_builtins(place) for number, place in record.positions.items()}
        named = {"number": record.number, "step": record.step, "samples": record.samples, "positions": where}
        return named | {"state": state, "at": at, "cursor": cursor}

    def _void(self, step: int) -> None:
        self.steps = {number: row for number, row in self.steps.items() if number <= step}
        for row in self.checkpoints.values():
            if row["step"] > step:
                row["state"] = "void"

    def aggregates(self) -> list[Row]:
        """Rows of all levels, in order."""
        below = rows = [row | {"level": 1, "bucket": step} for step, row in sorted(self.steps.items())]
        for level in LEVELS[1:]:
            trained = [row for row in below if row["steps"]]
            buckets = sorted({row["first_step"] // level for row in trained})
            grouped = [[row for row in trained if row["first_step"] // level == bucket] for bucket in buckets]
            below = [_sums(inside) | {"level": level, "bucket": inside[0]["first_step"] // level} for inside in grouped]
            rows = rows + below
        return rows


def _sums(rows: list[Row]) -> Row:
    alphas = [row["alpha"] for row in rows for _ in range(row["steps"]) if row["alpha"] is not None]
    firsts = [row["first_at"] for row in rows if row["first_at"] is not None]
    lasts = [row["last_at"] for row in rows if row["last_at"] is not None]
    losses = [row["loss"] for row in rows]
    return {name: sum(row[name] for row in rows) for name in SUMMED} | {
        "first_step": rows[0]["first_step"],
        "last_step": rows[-1]["last_step"],
        "loss": None if None in losses else sum(losses),
        "alpha": sum(alphas) / len(alphas) if alphas else None,
        "first_at": min(firsts, default=None),
        "last_at": max(lasts, default=None),
    }

"""Maps records of a journal to changes of the tables; pure functions.

The changes follow from the record, its cursor and the earlier records of the same page. Only two facts come from the
database: whether the run has begun, and the time of its newest event. So the resulting rows do not depend on the size
of pages.
"""

import math
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import msgspec

from dispatch.commands.stop import STOPPED
from dispatch.feed.page import FeedPage, PlacedRecord
from dispatch.journal.records import (
    PRESENT_NAMES,
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
from infra.web.store.values import finite, plain

Row = dict[str, Any]
AUTO = "auto"
GAP = "gap"
NO_TOKEN = ""
"""Token of a command that came on the run's own socket and not through the API; only the run's owner can reach that."""
DONE = 200


@dataclass
class Changes:
    """Changed rows, by table. Void rows are removed first; then rows are inserted, or replace existing ones."""

    has_begun: bool
    """Whether the run has a state other than ``seen``."""
    last_at: float | None
    """Time of the newest event so far, without gaps; needed because earlier releases wrote some records without a time.
    """
    read_at: float
    """Time at which this page was read: the time of a gap, and of events for which no other time is known."""
    run: Row = field(default_factory=dict)
    """Columns of the run that change."""
    steps_void_after: int | None = None
    """Steps after this one are removed."""
    checkpoints_void_after: int | None = None
    """Checkpoints of steps after this one become void."""
    steps: dict[int, Row] = field(default_factory=dict)
    """Rows of level 1, by step.

    alpha None: keep the stored value, because the step was decided in an earlier page. samples None: the record has no
    figures.
    """
    restated: dict[int, Row] = field(default_factory=dict)
    """Generations that a checkpoint repeats; they are inserted if they are missing."""
    generations: dict[int, Row] = field(default_factory=dict)
    alpha_changes: list[Row] = field(default_factory=list)
    checkpoints: dict[int, Row] = field(default_factory=dict)
    faults: list[Row] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)
    settled: dict[str, Row] = field(default_factory=dict)
    """Answers of commands that are in the journal, by command id."""
    given: dict[str, Row] = field(default_factory=dict)
    """Entries of the audit trail, by command id, for commands that did not come through the API."""


def fold(page: FeedPage, cursor: int, has_begun: bool, last_at: float | None, read_at: float) -> Changes:
    """The changes that a page makes to tables that have been projected up to a cursor."""
    changes = Changes(has_begun, last_at, read_at)
    records = [one for one in page.records if one.cursor > cursor]
    if page.after > cursor:
        _add_gap(changes, cursor, page.after, records)
    for at, together in groupby(records, lambda one: one.cursor):
        for place, one in enumerate(together):
            _add(changes, one.record, at, place)
    return changes


def _add_gap(changes: Changes, cursor: int, last: int, records: list[PlacedRecord]) -> None:
    """Adds a gap: records were trimmed before they could be read.

    If the first record that is left is a checkpoint, it says at which step the run continues.
    """
    body = {"first": cursor + 1, "last": last}
    changes.events.append({"cursor": last, "place": 0, "kind": GAP, "body": body, "at": changes.read_at})
    if records and isinstance(opening := records[0].record, CheckpointBegun) and opening.opens:
        changes.steps_void_after = opening.step


def _add(changes: Changes, record: AnyRecord, cursor: int, place: int) -> None:
    if isinstance(record, StepDecided):
        changes.steps[record.step] = decided(record)
        return
    if isinstance(record, StepDone):
        changes.steps[record.step] = done(record, changes.steps.get(record.step))
        return
    key = {"cursor": cursor, "place": place}
    changes.events.append(key | _event(changes, record))
    match record:
        case Begun():
            _begin(changes, record)
        case GenerationStarted():
            changes.generations[record.number] = _generation(record, cursor)
            changes.restated.pop(record.number, None)
            _set_state(changes, "running", None)
        case CheckpointBegun():
            _begin_checkpoint(changes, record, cursor)
        case CheckpointTaken():
            changes.checkpoints[record.number] = _checkpoint(record, cursor, "taken", known_time(record.at_seconds))
        case Commanded():
            _complete_command(changes, record, key)
        case AlphaChanged():
            changes.alpha_changes.append(key | _alpha_change(record))
        case Faulted():
            changes.faults.append(key | _fault(record))
        case Redecided():
            _void(changes, record.step)
        case Stopped() | Ended():
            state = "ended" if isinstance(record, Ended) else "stopped"
            _set_state(changes, state, known_time(record.at_seconds))


# ── steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
NOT_TRAINED: Row = {
    "steps": 0,
    "clicks": 0,
    "loss": 0.0,
    "seconds": 0.0,
    "decide_seconds": 0.0,
    "moved_bytes": 0,
    "first_at": None,
    "last_at": None,
}


def decided(record: StepDecided) -> Row:
    return NOT_TRAINED | {"step": record.step, "alpha": record.alpha, "samples": record.manifest.samples}


def done(record: StepDone, before: Row | None) -> Row:
    """The row of a trained step; ``before`` is its row when it was decided, if that is known."""
    row = before or NOT_TRAINED | {"step": record.step, "alpha": None, "samples": None}
    if (figures := record.figures) is None:
        return row | {"steps": 1}
    at = known_time(figures.at_seconds)
    return row | {
        "steps": 1,
        "samples": figures.samples,
        "clicks": figures.clicks,
        "loss": finite(figures.loss),
        "seconds": figures.seconds,
        "decide_seconds": figures.decide_seconds,
        "moved_bytes": figures.moved_bytes,
        "first_at": at,
        "last_at": at,
    }


def _void(changes: Changes, step: int) -> None:
    """Discards the steps after this one: they will be decided again."""
    changes.steps_void_after = _lower(changes.steps_void_after, step)
    changes.checkpoints_void_after = _lower(changes.checkpoints_void_after, step)
    changes.steps = {number: row for number, row in changes.steps.items() if number <= step}
    for row in changes.checkpoints.values():
        if row["step"] > step:
            row["state"] = "void"


def _lower(before: int | None, step: int) -> int:
    return step if before is None else min(before, step)


# ── everything else ───────────────────────────────────────────────────────────────────────────────────────────────────
def _begin(changes: Changes, record: Begun) -> None:
    begun = {"topic": plain(record.topic), "code": plain(record.code), "begun_at": known_time(record.at_seconds)}
    changes.run.update(begun)
    _set_state(changes, "running", None)


def _set_state(changes: Changes, state: str, ended_at: float | None) -> None:
    changes.run.update(state=state, ended_at=ended_at)
    changes.has_begun = True


def _begin_checkpoint(changes: Changes, record: CheckpointBegun, cursor: int) -> None:
    if not changes.has_begun:
        _begin(changes, record.begun)
    if record.generation.number not in changes.generations:
        changes.restated.setdefault(record.generation.number, _generation(record.generation, cursor))
    changes.checkpoints[record.number] = _checkpoint(record, cursor, "begun", changes.last_at)


def _generation(record: GenerationStarted, cursor: int) -> Row:
    return {
        "number": record.number,
        "members": plain(record.members),
        "uses_hub": record.uses_hub,
        "base": record.base,
        "reason": plain(record.reason),
        "at": known_time(record.at_seconds),
        "cursor": cursor,
    }


def _checkpoint(record: CheckpointBegun | CheckpointTaken, cursor: int, state: str, at: float | None) -> Row:
    positions = msgspec.to_builtins(record.positions, str_keys=True)
    named = {"number": record.number, "step": record.step, "samples": record.samples, "positions": positions}
    return named | {"state": state, "at": at, "cursor": cursor}


def _complete_command(changes: Changes, record: Commanded, key: Row) -> None:
    answer = {"text": plain(record.text), "cursor": key["cursor"], "done_at": known_time(record.at_seconds)}
    changes.settled.setdefault(record.id, answer)
    if record.verb != STOPPED:
        changes.given.setdefault(record.id, _given(record))
    if record.verb == "alpha":
        changes.alpha_changes.append(key | _commanded_alpha(record))


def _given(record: Commanded) -> Row:
    """An entry of the audit trail without a token: the command came on the run's own socket."""
    action = " ".join(filter(None, (record.verb, record.worker, record.value)))
    detail = {"command": record.id, "reason": record.reason}
    named = {"actor": plain(record.actor), "token": NO_TOKEN, "action": plain(action), "status": DONE}
    return named | {"detail": plain(detail), "at": known_time(record.at_seconds) or 0.0}


def _commanded_alpha(record: Commanded) -> Row:
    by_hand = record.value != AUTO
    return {
        "step": record.step,
        "alpha": float(record.value) if by_hand else None,
        "mode": "manual" if by_hand else AUTO,
        "backend": "",
        "reason": plain(record.reason),
        "readings": {},
        "actor": plain(record.actor),
        "at": known_time(record.at_seconds),
    }


def _alpha_change(record: AlphaChanged) -> Row:
    return {
        "step": record.step,
        "alpha": finite(record.alpha),
        "mode": AUTO,
        "backend": plain(record.backend),
        "reason": plain(record.reason),
        "readings": plain(record.readings),
        "actor": "",
        "at": known_time(record.at_seconds),
    }


def _fault(record: Faulted) -> Row:
    named = {"step": record.step, "generation": record.generation, "kind": plain(record.kind)}
    return named | {"text": plain(record.text), "at": known_time(record.at_seconds)}


def _event(changes: Changes, record: AnyRecord) -> Row:
    body = plain(msgspec.to_builtins(record, str_keys=True))
    body = {PRESENT_NAMES.get(name, name): value for name, value in body.items()}
    kind = PRESENT_NAMES.get(body["is"], body.pop("is"))
    changes.last_at = known_time(body.pop("at_seconds")) or changes.last_at or _time_within(record) or changes.read_at
    return {"kind": kind, "body": body, "at": changes.last_at}


def _time_within(record: AnyRecord) -> float | None:
    """A time for a checkpoint that has none and is the first event: the time of a record that it repeats."""
    if not isinstance(record, CheckpointBegun):
        return None
    return known_time(record.generation.at_seconds) or known_time(record.begun.at_seconds)


def known_time(seconds: float) -> float | None:
    """A recorded time; None if none was recorded."""
    return seconds if seconds and math.isfinite(seconds) else None

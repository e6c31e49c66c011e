"""The journal of a run that takes checkpoints, goes back to one, and runs out of room."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from time import time
from typing import get_args

import msgspec
import numpy as np
import pytest
from structlog.testing import capture_logs

from dispatch.config import DispatchConfig
from dispatch.errors import CrewFailed, JournalUnwritable
from dispatch.job import DispatchJob, Golden
from dispatch.journal.history import JOURNAL, read_checkpoints, read_history
from dispatch.journal.log import UNREAD, read_records
from dispatch.journal.records import (
    AlphaChanged,
    AnyRecord,
    Begun,
    CheckpointTaken,
    Commanded,
    JournalRecord,
    SetChosen,
    StepDecided,
    StepDone,
)
from dispatch.journal.run import RunJournal
from dispatch.journal.terms import GenerationTerms
from dispatch.placement.capacity.participation import SetChange
from dispatch.placement.capacity.step_model import StepModel
from dispatch.placement.policies.spec import Needs
from infra.base.telemetry import code_version
from ingest.config import StreamConfig
from ingest.schema import load_schema
from ingest.streams.position import Position
from ps.config import RowConfig
from ps.protocol import EMPTY_MODEL, GO_ON
from tests.dispatch.journal.test_checkpoint_segments import full, step

TERMS = GenerationTerms(1, True, 0, 16, Needs(), "test")


def job_in(folder: Path, golden: Golden | None = None, journal_bytes: int = 1 << 20) -> DispatchJob:
    fixed = StreamConfig(), DispatchConfig(journal_bytes=journal_bytes), load_schema("synthetic"), RowConfig()
    return DispatchJob("r", 0, folder, *fixed, shards=1, golden=golden)


def begun_in(journal: RunJournal) -> None:
    """Begins a run."""
    journal.start_generation([], {0: Position(0)}, TERMS, EMPTY_MODEL)


def segments(folder: Path) -> tuple[int, int]:
    """How many are needed, and how many are kept because nobody has read them."""
    return len(list((folder / JOURNAL).glob("*.log"))), len(list((folder / JOURNAL / UNREAD).glob("*.log")))


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[RunJournal]:
    """Of a run that has decided steps 1 to 3, taken checkpoint 1 after step 1 and checkpoint 2 after step 3."""
    with closing(RunJournal(job_in(tmp_path))) as made:
        begun_in(made)
        made.append_step(step(1))
        made.begin_checkpoint(1, 1, {0: Position(1)}, 2)
        made.append_step(step(2))
        made.take_checkpoint(CheckpointTaken(1, 1, {0: Position(1)}, 2))
        made.append_step(step(3))
        made.begin_checkpoint(2, 3, {0: Position(3)}, 6)
        made.take_checkpoint(CheckpointTaken(2, 3, {0: Position(3)}, 6))
        yield made


def test_a_run_goes_on_from_a_checkpoint(journal: RunJournal, tmp_path: Path) -> None:
    journal.close()
    with closing(RunJournal(job_in(tmp_path), base=1)) as again:
        assert [s.step for s in again.history.steps] == [2, 3]
        assert (again.history.samples, again.history.positions) == (6, {0: Position(3)})
        again.start_generation([], None, TERMS, GO_ON)
        again.append_step(step(4, 2))
        again.begin_checkpoint(3, 4, {0: Position(4)}, 8)
        again.trim(3)
    history = read_history(tmp_path / JOURNAL)
    assert (history.base.number, history.last_generation, history.begun) == (3, 2, again.history.begun)
    assert len(list((tmp_path / JOURNAL).glob("*.log"))) == 1


def test_a_replay_of_a_trimmed_journal_begins_with_the_oldest_checkpoint(journal: RunJournal, tmp_path: Path) -> None:
    journal.trim(1)
    with closing(RunJournal(job_in(tmp_path / "golden", Golden(tmp_path)))) as golden:
        assert (golden.history.base.number, golden.history.base.step) == (1, 1)
        assert [s.step for s in golden.history.steps] == [2, 3]
        assert golden.generation == 0


def test_a_checkpoint_that_was_not_begun_is_begun_when_it_is_taken(journal: RunJournal, tmp_path: Path) -> None:
    journal.append_step(step(4))
    journal.take_checkpoint(CheckpointTaken(3, 3, {0: Position(3)}, 6))  # step 4 is on record: it opens no segment
    journal.trim(3)
    assert [s.step for s in read_history(tmp_path / JOURNAL, 3).steps] == [4]
    assert [checkpoint.number for checkpoint in read_checkpoints(tmp_path / JOURNAL).checkpoints] == [2, 3]


def test_steps_that_are_decided_anew_take_the_place_of_void_ones(journal: RunJournal, tmp_path: Path) -> None:
    journal.redecide(1, 1)
    journal.start_generation([], None, TERMS, GO_ON)
    journal.append_step(step(2, 2))
    history = read_history(tmp_path / JOURNAL, 1)
    assert [(s.step, s.manifest.generation) for s in history.steps] == [(2, 2)]
    assert [manifest.step for manifest in history.to_redecide] == [3]
    assert ([checkpoint.number for checkpoint in history.checkpoints], history.last_checkpoint) == ([1], 2)


def test_what_failed_for_lack_of_room_is_done_again_with_the_same_result(
    journal: RunJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[Callable[[], object]] = [
        lambda: journal.redecide(2, 3),
        lambda: journal.start_generation([], None, TERMS, GO_ON),
        lambda: journal.append_step(step(4, 2)),
        lambda: journal.begin_checkpoint(3, 4, {0: Position(4)}, 8),
        lambda: journal.take_checkpoint(CheckpointTaken(3, 4, {0: Position(4)}, 8)),
    ]
    for attempt in attempts:
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", full)
            for _ in range(2):
                with pytest.raises(JournalUnwritable):
                    attempt()
        attempt()
    history = read_history(tmp_path / JOURNAL, 2)
    assert ([s.step for s in history.steps], history.last_generation, history.last_checkpoint) == ([4], 2, 3)


def test_a_run_that_cannot_even_begin_for_lack_of_room_begins_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(RunJournal(job_in(tmp_path))) as journal:
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", full)
            with pytest.raises(JournalUnwritable):
                journal.start_generation([], {0: Position(7)}, TERMS, EMPTY_MODEL)
        journal.start_generation([], {0: Position(7)}, TERMS, EMPTY_MODEL)
    history = read_history(tmp_path / JOURNAL)
    assert (history.last_generation, history.positions) == (1, {0: Position(7)})


def test_what_nobody_has_read_stays_while_there_is_room(tmp_path: Path) -> None:
    with closing(RunJournal(job_in(tmp_path))) as kept:
        begun_in(kept)
        for number in (1, 2):
            kept.append_step(step(number))
            kept.begin_checkpoint(number, number, {0: Position(number)}, 2 * number)
        kept.trim(2)
        assert segments(tmp_path) == (1, 2)
        kept.readers.note("a", 2)
        kept.trim(2)
        assert segments(tmp_path) == (1, 1)
        kept.readers.note("a", kept.cursor)
        kept.trim(2)
        assert segments(tmp_path) == (1, 0)


def test_what_nobody_has_read_goes_oldest_first_when_there_is_no_room(tmp_path: Path) -> None:
    with closing(RunJournal(job_in(tmp_path, journal_bytes=0))) as small, capture_logs() as logs:
        begun_in(small)
        small.append_step(step(1))
        small.begin_checkpoint(1, 1, {0: Position(1)}, 2)
        small.trim(1)
    assert segments(tmp_path) == (1, 0)
    assert [log["log_level"] for log in logs if "not all have read them" in log["event"]] == ["warning"]


def test_times_are_on_record_and_old_journals_are_read_without(tmp_path: Path) -> None:
    with closing(RunJournal(job_in(tmp_path))) as made:
        begun_in(made)
        made.fault(0, CrewFailed("worker w is lost"))
        made.stop("SIGTERM", 0, 0, "")
    records = list(read_records(tmp_path / JOURNAL))
    assert all(getattr(record, "at_seconds", 1e10) > 1e9 for record in records)
    assert [type(record).__name__ for record in records] == ["Begun", "GenerationStarted", "Faulted", "Stopped"]
    assert isinstance(records[0], Begun)
    assert records[0].code == code_version()
    old = msgspec.msgpack.encode({"is": "done", "step": 1, "logits": 7})
    assert msgspec.msgpack.decode(old, type=StepDone) == StepDone(1, 7, None)


def test_a_command_before_the_run_begins_is_kept(tmp_path: Path) -> None:
    with closing(RunJournal(job_in(tmp_path))) as made:
        made.steer(Commanded("k", "pause", "", 0, "paused"))
    with closing(RunJournal(job_in(tmp_path))) as again:
        assert [command.id for command in again.history.commands] == ["k"]
        begun_in(again)
    assert read_history(tmp_path / JOURNAL).last_generation == 1


EVENTS = [kind for kind in get_args(AnyRecord) if kind not in (StepDecided, StepDone)]


@pytest.mark.parametrize("kind", EVENTS)
def test_every_record_that_is_given_out_as_an_event_has_a_time(kind: type[JournalRecord]) -> None:
    assert "at_seconds" in kind.__struct_fields__


def everybody_takes_part() -> SetChange:
    """Of a generation without members."""
    none, counts = np.zeros(0), np.zeros(0, np.int64)
    model = StepModel(1, none, none, none, none, counts, counts, is_in_seconds=True)
    return SetChange(np.zeros(0, np.bool_), model, 0.5, float("inf"), "expected to be faster")


def test_what_a_run_writes_down_itself_has_the_time_it_was_written(tmp_path: Path) -> None:
    began = time()
    with closing(RunJournal(job_in(tmp_path))) as journal:
        begun_in(journal)
        journal.append_step(step(1))
        journal.take_checkpoint(CheckpointTaken(1, 1, {0: Position(1)}, 2, at_seconds=time()))
        journal.append_step(step(2), everybody_takes_part())
        journal.fault(2, CrewFailed("gone"))
        journal.redecide(1, 1)
        journal.start_generation([], None, TERMS, 1)
        journal.stop("asked", 1, 1, "d")
        journal.start_generation([], None, TERMS, GO_ON)
        journal.end("over", 1, 1, "d")
    events = [one for one in read_records(tmp_path / JOURNAL) if not isinstance(one, StepDecided | StepDone)]
    assert {type(one) for one in events} | {Commanded, AlphaChanged, StepDecided, StepDone} == set(get_args(AnyRecord))
    assert [one for one in events if not began <= one.at_seconds <= time()] == []
    (chosen,) = [one for one in events if isinstance(one, SetChosen)]
    assert (chosen.step, chosen.members, chosen.expected_seconds, chosen.before_seconds) == (2, (), 0.5, None)

"""Steps that were declared void."""

from pathlib import Path

import pytest

from dispatch.errors import CheckpointUnusable
from dispatch.journal.history import Base, history_of
from dispatch.journal.records import AnyRecord, CheckpointTaken, GenerationStarted, Redecided, StepDone
from ingest.errors import LogCorrupt
from ingest.streams.position import Position
from tests.dispatch.journal.test_checkpoint_segments import BEGUN, GENERATION, begin, step, taken

FOLDER = Path("runs/r")
AGAIN = GenerationStarted(2, ("a",), True, 0, 1, "a worker is gone")
RECORDS: list[AnyRecord] = [
    BEGUN,
    GENERATION,
    step(1),
    StepDone(1, 11),
    begin(1, 1),
    step(2),
    taken(1, 1),
    StepDone(2, 22),
    begin(2, 2),
    taken(2, 2),
    step(3),
    Redecided(1, 1),
]


def test_void_steps_their_digests_and_checkpoints_are_gone_and_their_batches_wait() -> None:
    history = history_of(RECORDS, FOLDER)
    assert [s.step for s in history.steps] == [1]
    assert history.to_redecide == (step(2).manifest, step(3).manifest)
    assert (history.digests, history.positions, history.samples) == ({1: 11}, {0: Position(1)}, 2)
    assert ([checkpoint.number for checkpoint in history.checkpoints], history.last_checkpoint) == ([1], 2)


def test_batches_that_were_decided_anew_wait_no_more() -> None:
    history = history_of([*RECORDS, AGAIN, step(2, 2)], FOLDER)
    assert [s.manifest.generation for s in history.steps] == [1, 2]
    assert history.to_redecide == (step(3).manifest,)
    twice = history_of([*RECORDS, AGAIN, step(2, 2), Redecided(1, 1)], FOLDER)
    assert twice.to_redecide == (step(2, 2).manifest, step(3).manifest)


def test_a_checkpoint_whose_steps_are_void_is_no_base() -> None:
    with pytest.raises(CheckpointUnusable, match="checkpoint 2 on: its steps have been declared void"):
        history_of(RECORDS, FOLDER, Base(2, 2, {0: Position(2)}, 4))


@pytest.mark.parametrize(
    ("records", "problem"),
    [
        ([Redecided(7, 9)], "steps after step 9 are void"),
        ([Redecided(1, 0)], "steps after step 0 are void"),
        ([AGAIN, step(3, 2)], "step 3 follows step 1"),
        ([begin(2, 1)], "checkpoint 2 after step 1 follows checkpoint 2 and step 1"),
        ([begin(3, 2)], "checkpoint 3 after step 2 follows checkpoint 2 and step 1"),
        ([taken(2, 2)], "checkpoint 2 was taken and had not begun"),
        ([begin(3, 1, AGAIN)], "checkpoint 3 is of another run or generation"),
        (
            [begin(3, 1), CheckpointTaken(3, 1, {0: Position(2)}, 2)],
            "checkpoint 3 was taken and had not begun, or otherwise",
        ),
    ],
)
def test_what_does_not_follow_is_damage(records: list[AnyRecord], problem: str) -> None:
    with pytest.raises(LogCorrupt, match=problem):
        history_of([*RECORDS, *records], FOLDER)

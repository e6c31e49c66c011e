"""Dense weights through the barrier of a shard: who pushes is announced, and a pull waits for all of them."""

import re
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from infra.wire import NO_ARRAYS, NO_F32, NO_I64, Arrays, Header, Refused
from ps.config import DenseRule, RowConfig
from ps.protocol import (
    BARE,
    FLUSH,
    TRAIN,
    WHOLE,
    Announce,
    AnnounceArrays,
    Count,
    Open,
    Peek,
    PeekArrays,
    Pull,
    PullArrays,
    Push,
    PushArrays,
)
from ps.rounds import Received
from ps.shard import Reply, Shard

WORKERS = 3


def tell(shard: Shard, kind: type[Header], arrays: Arrays = NO_ARRAYS, **fields: Any) -> list[Reply]:
    common: dict[str, Any] = {"run": "r", "generation": 1, "step": 1}
    return list(shard.receive(Received(b"w", kind(**common | fields), arrays)))


def announce(shard: Shard, step: int, pushers: list[int], form: int, phase: int = TRAIN) -> list[Reply]:
    arrays = AnnounceArrays(pushed=np.zeros(len(pushers), np.uint64))
    named: dict[str, Any] = {"pushers": pushers, "dense_pushers": pushers, "dense_form": form}
    return tell(shard, Announce, arrays, step=step, phase=phase, **named)


def push(shard: Shard, step: int, worker: int, form: int, *floats: float, phase: int = TRAIN) -> list[Reply]:
    arrays = PushArrays(NO_I64, NO_F32, NO_I64, NO_F32, np.array(floats, np.float32))
    return tell(shard, Push, arrays, step=step, phase=phase, worker=worker, dense=form)


def pull(shard: Shard, step: int, worker: int = 0, form: int = BARE) -> list[Reply]:
    return tell(shard, Pull, PullArrays(), step=step, worker=worker, dense=form)


def dense_of(replies: list[Reply]) -> list[NDArray[Any]]:
    return [reply.arrays[-1].tolist() for reply in replies]


@pytest.fixture
def shard() -> Shard:
    """One that was handed the weights 1 and 2 in the round of step 1."""
    made = Shard(RowConfig(dim=2), "r", seed=1, chunk_rows=4, dense=DenseRule("sgd", 1.0))
    tell(made, Open, workers=WORKERS)
    announce(made, 1, [0], WHOLE)
    assert push(made, 1, 0, WHOLE, 1, 2) == []
    return made


def test_a_pull_waits_for_every_gradient_that_was_announced(shard: Shard) -> None:
    announce(shard, 2, [0, 2], BARE)
    assert push(shard, 2, 2, BARE, 1, 0) == []
    assert pull(shard, 2) == []
    assert dense_of(push(shard, 2, 0, BARE, 0, 5)) == [[0, -3]]
    assert dense_of(pull(shard, 2, worker=1)) == [[0, -3]]


def test_sums_do_not_depend_on_the_order_of_arrival(shard: Shard) -> None:
    results = set()
    for step, order in enumerate(permutations(range(WORKERS)), start=2):
        announce(shard, step, list(range(WORKERS)), BARE)
        for worker in order:
            push(shard, step, worker, BARE, [1e8, 1, -1e8][worker], 0)
        ((changed, _),) = dense_of(pull(shard, step))
        results.add(changed)
    assert len(results) == 1


def test_a_gradient_that_comes_before_its_round_is_kept(shard: Shard) -> None:
    assert push(shard, 2, 1, BARE, 1, 1) == []
    assert pull(shard, 2) == []
    assert dense_of(announce(shard, 2, [1], BARE)) == [[0, 1]]


@pytest.mark.parametrize(
    ("worker", "form", "floats", "reason"),
    [
        (1, BARE, (1, 1), "without being announced"),
        (0, WHOLE, (1, 1), "in form 2 in round .* expected form 1"),
        (0, 0, (), "in form 0 in round .* expected form 1"),
        (0, BARE, (1, 1, 1), "brought 3 floats"),
    ],
)
def test_what_was_not_announced_is_refused_and_changes_nothing(
    shard: Shard, worker: int, form: int, floats: tuple[float, ...], reason: str
) -> None:
    announce(shard, 2, [0], BARE)
    (refused,) = push(shard, 2, worker, form, *floats)
    assert isinstance(refused.header, Refused)
    assert re.search(reason, refused.header.reason)
    assert dense_of(tell(shard, Peek, PeekArrays(NO_I64), dense=WHOLE)) == [[1, 2]]
    push(shard, 2, 0, BARE, 1, 1)
    assert dense_of(pull(shard, 2)) == [[0, 1]]


def test_the_next_generation_finds_what_the_flush_brought(shard: Shard) -> None:
    announce(shard, 1, [2], BARE, phase=FLUSH)
    push(shard, 1, 2, BARE, 1, 1, phase=FLUSH)
    (ledger,) = tell(shard, Count)
    assert (ledger.header.applied_step, ledger.header.applied_phase) == (1, FLUSH)  # type: ignore[attr-defined]
    assert ledger.arrays[-2].tolist() == [2, 2], "floats pushed in both rounds"
    tell(shard, Open, workers=1, generation=2)
    assert dense_of(tell(shard, Peek, PeekArrays(NO_I64), dense=WHOLE, generation=2)) == [[0, 1]]

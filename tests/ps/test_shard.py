"""What a shard counts and how it reuses memory; its behaviour towards others is tested over sockets in test_main.py."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry

from infra.base.telemetry import Meter, Refusals
from infra.base.wire import NO_ARRAYS, Arrays, Codec, Header, Refused
from ps.checkpoints.restore import ModelSettings
from ps.config import RowConfig
from ps.keys import FREE
from ps.main import answer
from ps.phases import TRAIN
from ps.protocol import (
    TO_SHARD,
    Announce,
    AnnounceArrays,
    Open,
    Peek,
    PeekArrays,
    Pull,
    PullArrays,
    Push,
    Rows,
    RowsArrays,
)
from ps.rounds import Received
from ps.shard import Reply, Shard
from ps.start import start_rows
from tests.ps.doubles import NO_ROWS, fingerprints, ints, owned

ROWS = RowConfig(dim=3)
NO_FLOATS = np.empty(0, np.float32)


def tell(shard: Shard, kind: type[Header], arrays: Arrays = NO_ARRAYS, **fields: Any) -> list[Reply]:
    common: dict[str, Any] = {"run": "r", "generation": 1, "step": 0}
    return list(shard.receive(Received(b"w", kind(**common | fields), arrays)))


def opened() -> Shard:
    shard = Shard(ModelSettings(ROWS, 1, 4), "r")
    tell(shard, Open, workers=1)
    created = AnnounceArrays(new_numbers=np.arange(9), new_keys=np.arange(9, dtype=np.uint64))
    tell(shard, Announce, created, phase=TRAIN, pushers=[])
    return shard


def test_fenced_push_is_counted_and_answered_with_its_own_generation() -> None:
    shard = opened()
    (refused,) = tell(shard, Push, owned(NO_ROWS, NO_FLOATS), phase=TRAIN, worker=0, generation=0)
    assert isinstance(refused.header, Refused)
    assert (refused.header.generation, refused.header.current) == (0, 1)
    assert shard.refused.by_type == {"Push": 1}


def test_reply_that_was_sent_lends_its_memory_to_the_next() -> None:
    shard = opened()
    (first,) = tell(shard, Peek, PeekArrays(ints(8)))
    assert first.buffer is not None
    first.buffer.sent([])
    (second,) = tell(shard, Peek, PeekArrays(ints(2, 3)))
    (third,) = tell(shard, Peek, PeekArrays(ints(2)))
    assert second.buffer is not third.buffer
    assert first.buffer in (second.buffer, third.buffer)


def announced(shard: Shard, step: int, pushers: list[int], settled: NDArray[np.int64] = NO_ROWS) -> list[Reply]:
    arrays = AnnounceArrays(settled=settled, pushed=fingerprints(*[([], [])] * len(pushers)))
    return tell(shard, Announce, arrays, step=step, phase=TRAIN, pushers=pushers)


def test_round_with_a_pusher_outside_the_generation_is_refused_and_not_waited_for() -> None:
    shard = opened()
    (refused,) = announced(shard, 1, pushers=[1])
    assert isinstance(refused.header, Refused)
    assert announced(shard, 2, pushers=[]) == []
    assert isinstance(tell(shard, Pull, PullArrays(full_numbers=ints(0)), step=2, worker=0)[0].header, Rows)


def test_round_that_settles_an_unknown_row_is_refused_before_it_begins() -> None:
    shard = opened()
    (refused,) = announced(shard, 1, [], settled=ints(9))
    assert isinstance(refused.header, Refused)
    assert "UnknownRow" in refused.header.reason
    assert announced(shard, 1, []) == []


def test_waiting_pull_of_an_unknown_row_is_refused_alone() -> None:
    shard = opened()
    for row in (9, 2):
        assert tell(shard, Pull, PullArrays(full_numbers=ints(row)), step=1, worker=0) == []
    assert [type(reply.header) for reply in announced(shard, 1, [])] == [Refused, Rows]


def test_refused_messages_are_a_metric_by_type() -> None:
    registry = CollectorRegistry()
    shard = Shard(ModelSettings(ROWS, 1, 4), "r", refused=Refusals(Meter(registry)))
    list(answer(shard, Codec(*TO_SHARD), b"w", [b"garbage"]))
    tell(shard, Pull, PullArrays(full_numbers=ints(0)), worker=0)
    for message in ("unreadable", "Pull"):
        assert registry.get_sample_value("freshet_refused_messages_total", {"message": message}) == 1


# ── keys that are forgotten ───────────────────────────────────────────────────────────────────────────────────────────
def rekeyed(shard: Shard, step: int, forgotten: list[int], reused: dict[int, int]) -> list[Reply]:
    keys = np.array(list(reused.values()), np.uint64)
    arrays = AnnounceArrays(forgotten=ints(*forgotten), reused=ints(*reused), reused_keys=keys)
    return tell(shard, Announce, arrays, step=step, phase=TRAIN, pushers=[])


def test_rows_are_forgotten_only_when_earlier_rounds_have_written_them() -> None:
    shard = opened()
    tell(shard, Open, workers=1, generation=2)
    whole = np.full(shard.store.shape.total, 5.0, np.float32)
    pushed = AnnounceArrays(pushed=fingerprints(([4], [])), changed=ints(4), changed_steps=ints(1))
    tell(shard, Announce, pushed, step=1, phase=TRAIN, pushers=[0], generation=2)
    arrays = AnnounceArrays(forgotten=ints(4, 2), reused=ints(4), reused_keys=np.array([77], np.uint64))
    tell(shard, Announce, arrays, step=2, phase=TRAIN, pushers=[], generation=2)
    assert shard.store.keys(ints(2, 4)).tolist() == [2, 4], "the push of step 1 is still on its way"
    pull = PullArrays(full_numbers=ints(4))
    assert tell(shard, Pull, pull, step=2, worker=0, generation=2) == []
    (answered,) = tell(shard, Push, owned(ints(4), whole), step=1, phase=TRAIN, worker=0, generation=2)
    assert shard.store.keys(ints(2, 4)).tolist() == [FREE, 77]
    expected = start_rows(ROWS, 1, np.array([77], np.uint64)).reshape(-1)
    assert isinstance(answered.arrays, RowsArrays)
    assert answered.arrays.full.tolist() == expected.tolist()


@pytest.mark.parametrize(("forgotten", "reused"), [([3, 3], {}), ([], {3: 50}), ([9], {}), ([], {9: 50})])
def test_keys_that_cannot_be_forgotten_or_given_are_refused(forgotten: list[int], reused: dict[int, int]) -> None:
    shard = opened()
    (refused,) = rekeyed(shard, 1, forgotten, reused)
    assert isinstance(refused.header, Refused)
    assert shard.store.keys(np.arange(9)).tolist() == list(range(9))

"""What a shard counts and how it reuses memory; its behaviour towards others is tested over sockets in test_main.py."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry

from infra.base.telemetry import Meter, Refusals
from infra.base.wire import NO_ARRAYS, Arrays, Codec, Header, Refused
from ps.bins import BINS
from ps.checkpoints.restore import ModelSettings
from ps.config import RowConfig
from ps.keys import FREE
from ps.main import answer
from ps.packed import Packing
from ps.phases import TRAIN
from ps.protocol import (
    TO_SHARD,
    Announce,
    AnnounceArrays,
    ChunksCountedArrays,
    CountChunks,
    Open,
    Peek,
    PeekArrays,
    Prune,
    Pruned,
    PrunedArrays,
    Pull,
    PullArrays,
    Push,
    Rows,
    RowsArrays,
)
from ps.pruned_store import PrunedStore
from ps.rounds import Received
from ps.shard import Reply, Shard
from ps.start import start_rows
from ps.utilities import bins_reference
from tests.ps.doubles import NO_ROWS, fingerprints, ints, owned, parts

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


# ── chunks that are pruned ────────────────────────────────────────────────────────────────────────────────────────────
IN_CHUNKS = RowConfig(dim=4, chunks=2)


def in_chunks(bare: tuple[int, ...] = ()) -> Shard:
    """A shard of nine rows, of which some begin with all chunks pruned."""
    shard = Shard(ModelSettings(IN_CHUNKS, 1, 4), "r")
    tell(shard, Open, workers=2)
    created = AnnounceArrays(new_numbers=np.arange(9), new_keys=np.arange(9, dtype=np.uint64), bare=ints(*bare))
    assert tell(shard, Announce, created, phase=TRAIN, pushers=[]) == []
    return shard


def reason_of(replies: Iterable[Reply]) -> str:
    (refused,) = replies
    assert isinstance(refused.header, Refused)
    return refused.header.reason


def live(shard: Shard) -> list[int]:
    assert isinstance(shard.store, PrunedStore)
    return list(map(int, shard.store.masks(np.arange(len(shard.store)))))


def use(shard: Shard, step: int, row: int, uses: int) -> None:
    """Both workers use a row, and it is settled."""
    pushed = fingerprints(([], [row]), ([], [row]))
    arrays = AnnounceArrays(pushed=pushed, settled=ints(row), changed=ints(row), changed_steps=ints(step))
    tell(shard, Announce, arrays, step=step, phase=TRAIN, pushers=[0, 1])
    part = np.array([3, 4, 0, 0, 1, uses, 1], np.float32)
    for worker in (0, 1):
        assert tell(shard, Push, parts(ints(row), part), step=step, phase=TRAIN, worker=worker) == []


def test_chunks_are_counted_by_liveness_number_and_bin() -> None:
    shard = in_chunks(bare=(3,))
    use(shard, 1, 5, uses=2)
    (census,) = tell(shard, CountChunks)
    assert isinstance(census.arrays, ChunksCountedArrays)
    counts = census.arrays.counts.reshape(2, 2, BINS)
    (worth,) = bins_reference(np.array([2 * 2 * 10.0]))
    assert counts[1, 0, worth] == 1
    assert counts[:, :, 0].tolist() == [[1, 1], [7, 8]]
    assert counts.sum() == 18


def test_prune_evicts_what_is_worth_least_and_brings_back_what_is_worth_it() -> None:
    shard = in_chunks(bare=(3,))
    use(shard, 1, 5, uses=2)
    use(shard, 2, 3, uses=1)
    (answer,) = tell(shard, Prune, evict_below=[1, 0], bring_from=[1, 1])
    assert isinstance(answer.header, Pruned)
    assert isinstance(answer.arrays, PrunedArrays)
    assert (answer.header.pruned, answer.header.brought_back) == (7, 1)
    assert live(shard) == [2, 2, 2, 1, 2, 3, 2, 2, 2]
    assert answer.arrays.numbers.tolist() == [0, 1, 2, 3, 4, 6, 7, 8]
    assert answer.arrays.masks.tolist() == [2, 2, 2, 1, 2, 2, 2, 2]
    (pulled,) = tell(shard, Pull, PullArrays(full_numbers=ints(3, 0)), worker=0)
    assert isinstance(pulled.arrays, RowsArrays)
    assert pulled.arrays.full_masks.tolist() == [1, 2]
    row_3, row_0 = Packing(IN_CHUNKS).unpack(pulled.arrays.full, pulled.arrays.full_masks, with_state=True)
    assert row_3[:2].tolist() == start_rows(IN_CHUNKS, 1, np.array([3], np.uint64))[0, :2].tolist()
    assert row_0[:2].tolist() == [0, 0]


def test_part_of_another_length_is_refused() -> None:
    shard = in_chunks()
    pushed = AnnounceArrays(pushed=fingerprints(([], [5])), settled=ints(5))
    tell(shard, Announce, pushed, step=1, phase=TRAIN, pushers=[0])
    push = parts(ints(5), np.zeros(5, np.float32))
    assert "brought 0 and 5 floats; expected 0 and 7" in reason_of(
        tell(shard, Push, push, step=1, phase=TRAIN, worker=0)
    )


def test_nothing_is_pruned_while_a_round_waits() -> None:
    shard = in_chunks()
    waiting = AnnounceArrays(pushed=fingerprints(([4], [])))
    tell(shard, Announce, waiting, step=1, phase=TRAIN, pushers=[0])
    everything: dict[str, Any] = {"evict_below": [1, 1], "bring_from": [BINS, BINS]}
    for kind, fields in ((CountChunks, {}), (Prune, everything)):
        assert "1 rounds wait for pushes" in reason_of(tell(shard, kind, **fields))
    assert live(shard) == [3] * 9


@pytest.mark.parametrize("thresholds", [[1], [1, 1, 1]])
def test_prune_of_another_number_of_chunks_is_refused(thresholds: list[int]) -> None:
    shard = in_chunks()
    assert "rows of 2 chunks" in reason_of(tell(shard, Prune, evict_below=[1, 1], bring_from=thresholds, halvings=1))
    assert live(shard) == [3] * 9


def test_only_the_opener_prunes_and_only_rows_in_chunks() -> None:
    common: dict[str, Any] = {"run": "r", "generation": 1, "step": 0}
    for header in (CountChunks(**common), Prune(**common, evict_below=[1, 1], bring_from=[1, 1])):
        foreign = in_chunks().receive(Received(b"somebody", header, NO_ARRAYS))
        assert "which opened the generation" in reason_of(foreign)
        assert "a shard of whole rows" in reason_of(opened().receive(Received(b"w", header, NO_ARRAYS)))


def test_bare_rows_may_be_new_or_reused_and_nothing_else() -> None:
    shard = in_chunks(bare=(8,))
    assert live(shard) == [3] * 8 + [0]
    assert rekeyed(shard, 1, [2, 4], {}) == []
    reused = AnnounceArrays(reused=ints(2, 4), reused_keys=np.array([70, 71], np.uint64), bare=ints(4))
    assert tell(shard, Announce, reused, step=2, phase=TRAIN, pushers=[]) == []
    assert live(shard) == [3, 3, 3, 3, 0, 3, 3, 3, 0]
    assert "neither new nor reused" in reason_of(
        tell(shard, Announce, AnnounceArrays(bare=ints(5)), step=3, phase=TRAIN, pushers=[])
    )
    new = AnnounceArrays(new_numbers=ints(9), new_keys=np.array([9], np.uint64), bare=ints(9))
    assert "rows have 0 chunks" in reason_of(tell(opened(), Announce, new, step=3, phase=TRAIN, pushers=[]))


def test_row_pushed_with_the_mask_that_it_had_before_is_refused() -> None:
    shard = in_chunks()
    assert isinstance(tell(shard, Prune, evict_below=[1, 0], bring_from=[BINS, BINS])[0].header, Pruned)
    tell(shard, Announce, AnnounceArrays(pushed=fingerprints(([4], []))), step=1, phase=TRAIN, pushers=[0])
    old_1T = start_rows(IN_CHUNKS, 1, np.array([4], np.uint64))
    packing = Packing(IN_CHUNKS)
    masks = packing.masks_of(old_1T)
    push = owned(ints(4), packing.pack(old_1T, masks))._replace(owned_masks=masks)
    assert "was written with the mask 3" in reason_of(tell(shard, Push, push, step=1, phase=TRAIN, worker=0))

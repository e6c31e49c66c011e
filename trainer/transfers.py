"""What moves between the shards and one worker, while the worker does something else.

Of every step, in this order:

1. early     as soon as the order is known, even while the step before computes: rows that the step before does not
             train leave their slots for the PS, and such rows are asked for
2. late      once the step before has given its rows their values: the other rows leave and are asked for; so are the
             dense weights
3. finish    rows enter the slots that the plan names, and dense weights their place, each answer as it arrives
4. gradient  of the dense weights, as soon as the worker has it

A row enters its slot only in 3, when whatever the slot held before has left in 1 or 2. So early transfers need no
thread and no lock: ZeroMQ's threads move the bytes, and the cache changes between two steps only.
"""

from dataclasses import dataclass

from dispatch.protocol import NONE_EARLY, EarlyMoves, Order, OrderArrays
from ps.client import Pulled, ShardClient
from ps.protocol import BARE, EARLY, TRAIN, WHOLE
from trainer.cache import RowCache
from trainer.dense import Dense


@dataclass
class Moved:
    """Bytes of one order."""

    rows_up: int = 0
    rows_down: int = 0
    dense_up: int = 0
    dense_down: int = 0


class Transfers:
    """The transfers of one worker in one generation."""

    def __init__(self, client: ShardClient, cache: RowCache, dense: Dense) -> None:
        self._client, self._cache, self._dense = client, cache, dense
        self._early_step = -1
        """the last step whose early transfers have begun"""
        self._early_bytes = 0
        """that they pushed"""
        self.moved = Moved()
        """of the last order begun"""

    def begin_early(self, order: Order, work: OrderArrays) -> None:
        """1, unless it has been done."""
        if order.phase == TRAIN and order.step != self._early_step:
            self._early_step = order.step
            self._early_bytes = self._push(order.step, EARLY, NONE_EARLY, order.early, work)
            full, values = work.full_rows[: order.early.full], work.value_rows[: order.early.values]
            self._client.ask(order.step, EARLY, full, values)

    def begin_late(self, order: Order, work: OrderArrays) -> None:
        """2, and 1 unless it has been done."""
        self.begin_early(order, work)
        early = self._early_bytes if order.phase == TRAIN else 0
        everything = _sizes(work)
        self.moved = Moved(early + self._push(order.step, order.phase, order.early, everything, work))
        if order.gives_dense:
            whole = self._dense.ranges(WHOLE, self._client.shards)
            self.moved.dense_up += self._client.push_dense(order.step, order.phase, whole)
        self._client.ask(
            order.step, order.phase, work.full_rows[order.early.full :], work.value_rows[order.early.values :]
        )
        if order.dense_pull:
            self._client.ask_dense(order.step, order.dense_pull)

    def finish(self, order: Order, work: OrderArrays) -> None:
        """3."""
        for answer in self._client.answers(order.step):
            if isinstance(answer, Pulled):
                first = NONE_EARLY if answer.phase == EARLY else order.early
                self._cache.put_full(work.full_slots[first.full :][answer.full], answer.full_KT)
                self._cache.put_values(work.value_slots[first.values :][answer.values], answer.values_KW)
                self.moved.rows_down += answer.nbytes
            else:
                self._dense.put(answer.form, answer.shard, self._client.shards, answer.piece, answer.floats)
                self.moved.dense_down += answer.floats.nbytes

    def push_gradient(self, order: Order) -> None:
        """4."""
        gradient = self._dense.ranges(BARE, self._client.shards)
        self.moved.dense_up += self._client.push_dense(order.step, order.phase, gradient)

    def _push(self, step: int, phase: int, first: EarlyMoves, end: EarlyMoves, work: OrderArrays) -> int:
        """Pushes a part of the rows to push; returns the bytes."""
        owned, parts = slice(first.owned, end.owned), slice(first.parts, end.parts)
        owned_KT = self._cache.take_full(work.owned_slots[owned])
        part_KW = self._cache.take_values(work.part_slots[parts])
        return self._client.push(step, phase, work.owned_rows[owned], owned_KT, work.part_rows[parts], part_KW)


def _sizes(work: OrderArrays) -> EarlyMoves:
    return EarlyMoves(len(work.owned_rows), len(work.part_rows), len(work.full_rows), len(work.value_rows))

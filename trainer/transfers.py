"""Moves rows and dense weights between the shards and one worker, while the worker does something else.

For every step, in this order:

  1. early     as soon as the order is known, even while the step before computes: requests the rows that the step
               before does not train, and the dense weights, which come piece by piece as they are updated; and pushes
               such rows out of their slots, those that only make room last
  2. late      once the step before has updated its rows: requests the other rows, and pushes the others
  3. finish    rows enter the slots that the plan names, and dense weights their place, each answer as it arrives
  4. gradient  of the dense weights, as soon as the worker has it

Requests are sent ahead of pushes on the same connection: an answer waits for the pushes that it depends on, and not for
bytes that happen to be queued before the request. A row enters its slot only in 3, when the previous row of the slot
has left in 1 or 2. Early transfers therefore need no thread and no lock: ZeroMQ's threads move the bytes, and the cache
changes only between two steps.
"""

from dataclasses import dataclass

from dispatch.protocol import NONE_EARLY, Order, OrderArrays
from infra.base.faults import reach
from infra.base.trace import span, traced
from ps.client import Pulled, ShardClient
from ps.phases import EARLY, EVICT, TRAIN
from ps.protocol import BARE, WHOLE
from trainer.cache import RowCache
from trainer.dense import Dense


@dataclass
class Moved:
    """Bytes moved for one order."""

    rows_up: int = 0
    rows_down: int = 0
    dense_up: int = 0
    dense_down: int = 0


class Transfers:
    """The transfers of one worker in one generation."""

    def __init__(self, client: ShardClient, cache: RowCache, dense: Dense) -> None:
        self._client = client
        self._cache = cache
        self._dense = dense
        self._asked_step = -1
        """The last step whose early requests have been sent."""
        self._early_step = -1
        """The last step whose early transfers have begun."""
        self._early_bytes = 0
        """Bytes that they pushed."""
        self.moved = Moved()
        """Bytes moved for the last order begun."""

    def ask_early(self, order: Order, work: OrderArrays) -> None:
        """Sends the requests of 1, unless they have been sent."""
        if order.phase == TRAIN and order.step != self._asked_step:
            self._asked_step = order.step
            early = order.early
            self._client.ask(order.step, EARLY, work.full_rows[: early.full], work.value_rows[: early.values])
            if order.dense_pull:
                self._client.ask_dense(order.step, order.dense_pull)

    def begin_early(self, order: Order, work: OrderArrays) -> None:
        """Does 1, unless it has been done."""
        self.ask_early(order, work)
        if order.phase == TRAIN and order.step != self._early_step:
            self._early_step = order.step
            early = order.early
            owned = len(work.owned_rows) - early.evicted_owned
            parts = len(work.part_rows) - early.evicted_parts
            pushed = self._push(order.step, EARLY, slice(early.owned), slice(early.parts), work)
            self._early_bytes = pushed + self._push(order.step, EVICT, slice(owned, None), slice(parts, None), work)

    def begin_late(self, order: Order, work: OrderArrays) -> None:
        """Does 2, and 1 unless it has been done."""
        self.begin_early(order, work)
        step = order.step
        phase = order.phase
        early = order.early
        self.moved = Moved(self._early_bytes if phase == TRAIN else 0)
        if order.gives_dense:
            whole = self._dense.ranges(WHOLE, self._client.shards)
            self.moved.dense_up += self._client.push_dense(step, phase, whole)
        self._client.ask(step, phase, work.full_rows[early.full :], work.value_rows[early.values :])
        owned = slice(early.owned, len(work.owned_rows) - early.evicted_owned)
        parts = slice(early.parts, len(work.part_rows) - early.evicted_parts)
        self.moved.rows_up += self._push(step, phase, owned, parts, work)

    def finish(self, order: Order, work: OrderArrays) -> None:
        """Does 3."""
        reach("waiting_for_pull", order.step)
        for answer in self._client.answers(order.step):
            if isinstance(answer, Pulled):
                first = NONE_EARLY if answer.phase == EARLY else order.early
                with span("put rows"):
                    self._cache.put_full(work.full_slots[first.full :][answer.full], answer.full_KT)
                    self._cache.put_values(work.value_slots[first.values :][answer.values], answer.values_KW)
                self.moved.rows_down += answer.nbytes
            else:
                with span("put dense"):
                    self._dense.put(answer.form, answer.shard, self._client.shards, answer.floats, answer.pieces)
                self.moved.dense_down += answer.floats.nbytes
        reach("after_pull", order.step)

    @traced
    def push_gradient(self, order: Order) -> None:
        """Does 4."""
        gradient = self._dense.ranges(BARE, self._client.shards)
        self.moved.dense_up += self._client.push_dense(order.step, order.phase, gradient)

    def _push(self, step: int, phase: int, owned: slice, parts: slice, work: OrderArrays) -> int:
        """Pushes some of the rows to push; returns the bytes."""
        owned_KT = self._cache.take_full(work.owned_slots[owned])
        part_KP = self._cache.take_parts(work.part_slots[parts])
        return self._client.push(step, phase, work.owned_rows[owned], owned_KT, work.part_rows[parts], part_KP)

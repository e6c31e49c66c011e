"""Runs whose assignment of samples to workers is fixed beforehand, and which flush where they are told to."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dispatch.coordinator import Coordinator
from dispatch.peers.roster import Roster
from dispatch.placement.arrays import I64
from dispatch.placement.assign.situation import Assignment
from dispatch.placement.decide import Assigned, Decider, Decision
from dispatch.placement.rows.directory import Directory
from dispatch.placement.rows.index import BatchRows
from dispatch.progress.underway import OrderedRound
from ingest.batches.batch import Batch
from tests.end_to_end.threads import Plan, Result, train

IDLE_EVERY = 5
"""in every so many steps a worker has no sample"""


def fixed_assignment(step: int, samples: int, workers: int) -> NDArray[np.int32]:
    """A function of these alone: shares are uneven, and now and then a worker has none."""
    draw = np.random.default_rng([11, step])
    shares = 1 + draw.random(workers)
    if workers > 1 and step % IDLE_EVERY == 0:
        shares[draw.integers(workers)] = 0
    return draw.choice(workers, samples, p=shares / shares.sum()).astype(np.int32)


def empty_caches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From now on every generation starts with empty caches; returns how many could have been kept in each."""
    left: list[int] = []

    def keep_none(self: Directory, _old: Directory, numbers: Sequence[int | None]) -> list[bool]:
        left.append(sum(number is not None for number in numbers))
        return [False] * self.workers

    monkeypatch.setattr(Directory, "continue_from", keep_none)
    return left


def flush_underway(coordinator: Coordinator, step: int) -> None:
    """A flush right behind a step that was just ordered; nobody waits for it."""
    assert coordinator.intake.step == step
    coordinator._order_flush(coordinator.training.decider, checkpoint=0)


def train_fixed(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, flush_after: Iterable[int] = (), flush_behind: Iterable[int] = ()
) -> tuple[Result, bytes]:
    """Trains with that assignment whatever the policy; returns also all logits.

    After each of the first steps everything ends, is flushed and goes on; behind the others it is flushed on the way.
    """
    due, logits, flush_steps, behind = list[int](), list[bytes](), set(flush_after), set(flush_behind)
    decide, order = Decider._assign, Coordinator.order
    start, logits_B = Coordinator.start_generation, OrderedRound.logits_B

    def assign(self: Decider, step: int, rows: BatchRows, capacity_n: I64, budget: float | None) -> Assigned:
        samples = len(rows.local_BF)
        if samples < 16:  # of the warm-up
            return decide(self, step, rows, capacity_n, budget)
        worker_B = fixed_assignment(step, samples, capacity_n.size)
        return Assigned(Assignment(worker_B), self._directory.plan(step, rows, worker_B))

    def order_and_note(self: Coordinator, step: int, decision: Decision, batch: Batch) -> None:
        order(self, step, decision, batch)
        if step in behind:
            flush_underway(self, step)
        due.extend(flush_steps & {step})

    def start_anew(self: Coordinator, *arguments: Any) -> Decider:
        due.clear()
        return start(self, *arguments)

    def note_logits(self: OrderedRound) -> NDArray[np.float32]:
        found = logits_B(self)
        logits.append(found.tobytes())
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Decider, "_assign", assign)
        patched.setattr(Coordinator, "order", order_and_note)
        patched.setattr(Coordinator, "start_generation", start_anew)
        patched.setattr(OrderedRound, "logits_B", note_logits)
        patched.setattr(Roster, "has_changed", property(lambda roster: bool(due) or roster.wanted != roster.members))
        result = train(plan)
    assert result.status.generation == 1 + len(flush_steps)
    return result, b"".join(logits)

"""Transfers that begin before the step before them has ended, in live runs."""

import time
from collections import Counter
from typing import Any

import numpy as np
import pytest

from dispatch.dense import Reduce
from dispatch.protocol import Order, OrderArrays
from ps.phases import EARLY, TRAIN
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.test_exactness import BATCH, OPTIMIZERS, expect_equal, rows_of
from tests.end_to_end.threads import WAIT_SECONDS, Plan, Result, train, train_reference
from trainer.worker import Upcoming, Worker

STEPS = 12
WAYS: list[tuple[int, Reduce, str]] = [(1, "hub", "adagrad"), (4, "ring", "adagrad")]
WAYS += [(2, "hub", optimizer) for optimizer in OPTIMIZERS]


def wait_for_orders(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """From now on workers wait for the next order before they compute; counts what then begins early."""
    seen: Counter[str] = Counter()
    execute = Worker.execute

    def waiting(worker: Worker, order: Order, work: OrderArrays, upcoming: Upcoming) -> Any:
        def patiently() -> tuple[Order, OrderArrays] | None:
            deadline = time.monotonic() + WAIT_SECONDS
            while (following := upcoming()) is None and order.step < STEPS:  # it is sent while this one is carried out
                assert time.monotonic() < deadline, f"there is no order after that of step {order.step}"
                time.sleep(0.001)
            if following is not None and following[0].step not in known:
                known.add(following[0].step)
                early = following[0].early
                seen["orders"] += 1
                seen["pushed"] += early.owned + early.parts + early.evicted_owned + early.evicted_parts
                seen["pulled"] += early.full + early.values
            return following

        known: set[int] = {order.step}
        return execute(worker, order, work, patiently)

    monkeypatch.setattr(Worker, "execute", waiting)
    return seen


def digests(result: Result) -> list[bytes]:
    return [result.rows_RT.tobytes(), *(result.dense[name].tobytes() for name in sorted(result.dense))]


@pytest.mark.parametrize(("workers", "reduce", "optimizer"), WAYS)
def test_rows_that_move_while_the_step_before_trains_change_no_bit(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch, workers: int, reduce: Reduce, optimizer: str
) -> None:
    named: dict[str, Any] = {"batch": BATCH, "rows": rows_of(optimizer), "reduce": reduce}
    plan, other = (Plan(write_topic(STEPS * BATCH, name), workers, "random", **named) for name in ("ahead", "at_time"))
    monkeypatch.setattr("trainer.worker.Worker._look_ahead", lambda *_, **__: None)
    at_their_time = train(other)
    monkeypatch.undo()
    seen = wait_for_orders(monkeypatch)
    ahead = train(plan)
    assert seen["orders"] == workers * (STEPS - 1)
    assert seen["pulled"] > 0
    assert (seen["pushed"] > 0) is (workers > 1)
    assert digests(ahead) == digests(at_their_time)
    expect_equal(ahead, train_reference(plan, ahead.manifests), tolerance=1e-4)


def test_shards_count_early_and_late_rows_apart(write_topic: WriteTopic) -> None:
    result = train(Plan(write_topic(STEPS * BATCH), 2, "random", batch=BATCH))
    moved = {phase: result.ledger[result.ledger[:, 2] == phase, 4:7].sum(axis=0) for phase in (EARLY, TRAIN)}
    assert np.all(moved[EARLY][:2] > 0), "pulled and owned rows pushed"
    assert np.all(moved[TRAIN] > 0)

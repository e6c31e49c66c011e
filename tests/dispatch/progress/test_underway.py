import numpy as np
from numpy.typing import NDArray

from dispatch.progress.underway import OrderedRound, RoundsUnderway
from dispatch.protocol import Report
from dispatch.rows.directory import Directory
from dispatch.rows.index import Index
from dispatch.rows.plan import RoundPlan
from dispatch.tally import NO_SECONDS, WorkerTraffic
from ps.protocol import FLUSH, TRAIN

NOTHING = np.empty(0, np.float32)


def planned(assignment: list[int]) -> RoundPlan:
    """A plan for two workers of samples with one key each."""
    rows = Index().resolve(np.arange(len(assignment), dtype=np.uint64).reshape(-1, 1))
    return Directory(np.full(2, 8, np.int64), "lru", 1).plan(1, rows, np.array(assignment, np.int32))


def reported(step: int, worker: int, phase: int = TRAIN) -> Report:
    return Report(
        run="r",
        generation=1,
        step=step,
        phase=phase,
        worker=worker,
        seconds=NO_SECONDS,
        pulled_bytes=70,
        pushed_bytes=80,
        reduced_bytes=90,
    )


def floats(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def test_rounds_are_completed_in_order_whatever_the_order_of_reports() -> None:
    underway = RoundsUnderway()
    for step in (1, 2):
        underway.add(OrderedRound(step, TRAIN, planned([0, 1])))
    for step, worker in ((2, 1), (2, 0), (1, 1)):
        underway.add_report(reported(step, worker), floats(0))
    assert list(underway.completed()) == []
    assert underway.oldest.missing == [0]
    underway.add_report(reported(1, 0), floats(0))
    assert [done.step for done in underway.completed()] == [1, 2]
    assert len(underway) == 0


def test_a_flush_is_told_from_the_step_of_its_number() -> None:
    underway = RoundsUnderway()
    underway.add(OrderedRound(1, FLUSH, planned([0, 1])))
    underway.add_report(reported(1, 0, TRAIN), NOTHING)
    assert underway.oldest.missing == [0, 1]
    underway.add_report(reported(1, 0, FLUSH), NOTHING)
    assert underway.oldest.missing == [1]


def test_logits_are_put_in_the_order_of_the_batch() -> None:
    done = OrderedRound(1, TRAIN, planned([1, 0, 1]), floats(0, 1, 0))
    done.reports = {1: (reported(1, 1), floats(10, 30)), 0: (reported(1, 0), floats(20))}
    assert done.logits_B().tolist() == [10, 20, 30]


def test_traffic_is_rows_as_planned_and_bytes_as_reported() -> None:
    done = OrderedRound(1, TRAIN, planned([1, 0, 1]), floats(0, 1, 0))
    done.reports = {1: (reported(1, 1), floats(10, 30))}
    moved = WorkerTraffic(samples=2, lookups=2, miss_pulls=2, pulled_bytes=70, pushed_bytes=80, reduced_bytes=90)
    assert done.traffic(1) == moved

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray

from dispatch.errors import BadReport
from dispatch.placement.rows.directory import Directory
from dispatch.placement.rows.index import Index
from dispatch.placement.rows.plan import RoundPlan
from dispatch.placement.traffic import WorkerTraffic
from dispatch.progress.underway import OrderedRound, Reported, RoundsUnderway
from dispatch.protocol import Report
from dispatch.tally import NO_SECONDS
from infra.base.distinct import number_keys
from ps.phases import FLUSH, TRAIN

NOTHING = np.empty(0, np.float32)


def planned(assignment: list[int]) -> RoundPlan:
    """A plan for two workers of samples with one key each."""
    rows = Index().resolve(number_keys(np.arange(len(assignment), dtype=np.uint64).reshape(-1, 1)))
    return Directory(np.full(2, 8, np.int64), "lru", 1).plan(1, rows, np.array(assignment, np.int32))


def reported(step: int, worker: int, phase: int = TRAIN) -> Report:
    return Report(
        run="r",
        generation=1,
        step=step,
        phase=phase,
        worker=worker,
        seconds=NO_SECONDS,
        pulled_bytes=70 if phase == TRAIN else 0,
        pushed_bytes=0,
    )


def ordered(step: int, assignment: list[int]) -> OrderedRound:
    """A step of two workers, both with an order."""
    labels = np.zeros(len(assignment), np.float32)
    return OrderedRound(step, TRAIN, planned(assignment), labels, order_bytes={0: 300, 1: 400})


def floats(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def test_rounds_are_completed_in_order_whatever_the_order_of_reports() -> None:
    underway = RoundsUnderway()
    for step in (1, 2):
        underway.add(ordered(step, [0, 1]))
    for step, worker in ((2, 1), (2, 0), (1, 1)):
        underway.add_report("w", Reported(reported(step, worker), floats(0)))
    assert list(underway.completed()) == []
    assert underway.oldest.missing == [0]
    underway.add_report("w", Reported(reported(1, 0), floats(0)))
    assert [done.step for done in underway.completed()] == [1, 2]
    assert len(underway) == 0


def test_a_flush_is_told_from_the_step_of_its_number() -> None:
    underway = RoundsUnderway()
    flush = Directory(np.full(2, 8, np.int64), "lru", 1).flush()
    underway.add(OrderedRound(1, FLUSH, flush, order_bytes={0: 300, 1: 400}))
    with pytest.raises(BadReport, match="not under way"):
        underway.add_report("w", Reported(reported(1, 0, TRAIN), NOTHING))
    assert underway.oldest.missing == [0, 1]
    underway.add_report("w", Reported(reported(1, 0, FLUSH), NOTHING))
    assert underway.oldest.missing == [1]


def test_logits_are_put_in_the_order_of_the_batch() -> None:
    done = OrderedRound(1, TRAIN, planned([1, 0, 1]), floats(0, 1, 0))
    done.reports = {1: Reported(reported(1, 1), floats(10, 30)), 0: Reported(reported(1, 0), floats(20))}
    assert done.logits_B().tolist() == [10, 20, 30]


def test_traffic_is_rows_as_planned_and_bytes_as_reported_or_seen() -> None:
    done = ordered(1, [1, 0, 1])
    done.reports = {1: Reported(reported(1, 1), floats(10, 30), 200)}
    moved = WorkerTraffic(samples=2, lookups=2, miss_pulls=2, pulled_bytes=70, order_bytes=400, report_bytes=200)
    assert done.traffic(1) == moved


@pytest.mark.parametrize("logits", [[], [1], [1, 2, 3]])
def test_logits_of_another_number_than_samples_are_refused(logits: list[float]) -> None:
    underway = RoundsUnderway()
    underway.add(ordered(1, [1, 0, 1]))
    with pytest.raises(BadReport, match=rf"worker w reported step 1 .*logits is {len(logits)}; expected 2;"):
        underway.add_report("w", Reported(reported(1, 1), floats(*logits)))
    assert underway.oldest.missing == [0, 1]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"pulled_bytes": 0}, "pulled_bytes is 0; expected 8 to"),
        ({"pulled_bytes": 1 << 61}, "pulled_bytes is 2305843009213693952; expected 8 to 4194304"),
        ({"pushed_bytes": 1}, "pushed_bytes is 1; expected 0"),
        ({"reduced_bytes": 8}, "reduced_bytes is 8; expected 0"),
        ({"dense_up_bytes": 1}, "dense_up_bytes is 1; expected 0;"),
        ({"dense_down_bytes": 1}, "dense_down_bytes is 1; expected 0;"),
        ({"link_bytes": 87}, "link_bytes is 87; expected 0 to 86"),
        ({"step": 2}, r"not under way; expected one of \(step, phase\) \[\(1, 1\)\]"),
        ({"phase": FLUSH}, "not under way"),
    ],
)
def test_a_report_that_does_not_fit_its_order_is_refused(change: dict[str, int], expected: str) -> None:
    underway = RoundsUnderway()
    underway.add(ordered(1, [1, 0, 1]))
    with pytest.raises(BadReport, match=expected):
        underway.add_report("w", Reported(structs.replace(reported(1, 1), **change), floats(1, 2)))


def test_a_second_report_of_a_step_is_refused_and_the_first_counts() -> None:
    underway = RoundsUnderway()
    underway.add(ordered(1, [1, 0, 1]))
    underway.add_report("w", Reported(reported(1, 1), floats(1, 2)))
    with pytest.raises(BadReport, match="it was reported before"):
        underway.add_report("w", Reported(reported(1, 1), floats(3, 4)))
    assert underway.oldest.reports[1].logits.tolist() == [1, 2]


def test_a_round_waits_for_those_who_got_an_order_and_for_no_others() -> None:
    underway = RoundsUnderway()
    for step, order_bytes in ((1, {1: 400}), (2, {0: 300, 1: 400}), (3, {})):
        underway.add(OrderedRound(step, TRAIN, planned([1]), order_bytes=order_bytes))
    underway.add_report("w", Reported(reported(1, 1), floats(0)))
    assert [done.step for done in underway.completed()] == [1]
    assert underway.awaited == [0, 1]
    underway.add_report("w", Reported(reported(2, 1), floats(0)))
    assert underway.awaited == [0]


def test_a_report_without_an_order_is_refused() -> None:
    underway = RoundsUnderway()
    underway.add(OrderedRound(1, TRAIN, planned([1, 1]), order_bytes={1: 400}))
    with pytest.raises(BadReport, match=r"worker w reported step 1 .*it got no order for that"):
        underway.add_report("w", Reported(structs.replace(reported(1, 0), pulled_bytes=0), NOTHING))

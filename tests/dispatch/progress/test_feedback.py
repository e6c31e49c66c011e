import numpy as np
import pytest
from msgspec import structs

from dispatch.config import DispatchConfig
from dispatch.placement.decide import Decider
from dispatch.placement.policies.registry import parse_spec
from dispatch.placement.rows.directory import Directory
from dispatch.placement.rows.index import Index
from dispatch.progress.feedback import DECIDE_SHARE, UNKNOWN_GBIT, Feedback, WorkerLink
from dispatch.progress.underway import OrderedRound, Reported
from dispatch.protocol import Report
from dispatch.tally import NO_SECONDS
from infra.base.distinct import number_keys
from ps.phases import TRAIN

FAST, SLOW = WorkerLink("fast", 5.0), WorkerLink("slow", 0.5)
UNKNOWN = (WorkerLink("a", 0.0), WorkerLink("b", 0.0))
ROW_BYTES = 1_000
MEGABYTE = 1_000_000


class Steps:
    """Completes step after step of two workers."""

    def __init__(self, feedback: Feedback, workers: tuple[WorkerLink, ...]) -> None:
        self.feedback = feedback
        directory = Directory(np.full(2, 64, np.int64), "lru", 1)
        spec = parse_spec("round_robin")
        policy, costs = spec.build(0, "cpu"), feedback.start_generation(workers)
        self.decider = Decider(Index(), directory, policy, spec.needs, costs.pull_n, push_cost_n=costs.push_n)

    def complete(self, busy_seconds: float = 0.1, link_seconds: tuple[float, float] = (1.0, 1.0)) -> None:
        decision = self.decider.decide(1, number_keys(np.arange(4, dtype=np.uint64).reshape(4, 1)))
        done = OrderedRound(1, TRAIN, decision.plan, np.zeros(4, np.float32))
        for worker, seconds in enumerate(link_seconds):
            report = Report(
                run="r",
                generation=1,
                step=1,
                phase=TRAIN,
                worker=worker,
                seconds=structs.replace(NO_SECONDS, forward=busy_seconds / (1 + worker)),
                pulled_bytes=MEGABYTE,
                pushed_bytes=0,
                link_bytes=MEGABYTE,
                link_seconds=seconds,
            )
            done.reports[worker] = Reported(report, np.zeros(2, np.float32))
        self.feedback.learn(done, self.decider)


def test_the_budget_is_what_a_step_keeps_the_busiest_worker_busy_once_that_is_known() -> None:
    feedback = Feedback(DispatchConfig(deadline=True), is_elastic=False, row_bytes=ROW_BYTES)
    steps = Steps(feedback, (FAST, SLOW))
    for seconds in (0.1, 0.3, 0.2, 9.0):
        steps.complete(seconds)
        assert feedback.budget_seconds is None
    steps.complete(0.1)
    assert feedback.budget_seconds == 0.2


def test_without_a_deadline_there_is_no_budget() -> None:
    feedback = Feedback(DispatchConfig(), is_elastic=False, row_bytes=ROW_BYTES)
    steps = Steps(feedback, (FAST, SLOW))
    for _ in range(5):
        steps.complete()
    assert (feedback.budget_seconds, feedback.busy_seconds) == (None, 0.1)


@pytest.mark.parametrize(("choose", "budget"), [("clock", 0.1 * DECIDE_SHARE), ("model", None), ("off", None)])
def test_where_the_clock_chooses_a_decision_takes_a_part_of_a_step(choose: str, budget: float | None) -> None:
    config = DispatchConfig(choose=choose)
    feedback = Feedback(config, is_elastic=True, row_bytes=ROW_BYTES)
    steps = Steps(feedback, (FAST, SLOW))
    for _ in range(5):
        steps.complete()
    assert feedback.budget_seconds == (None if budget is None else pytest.approx(budget))
    feedback.forget_busy()
    assert feedback.budget_seconds is None


def test_configured_links_cost_what_they_are_configured_to() -> None:
    feedback = Feedback(DispatchConfig(), is_elastic=True, row_bytes=ROW_BYTES)
    costs = feedback.start_generation((FAST, SLOW))
    assert costs.pull_n.tolist() == costs.push_n.tolist() == [1.0, 10.0]
    skewed = feedback.start_generation((FAST, WorkerLink("edge", 2.5, 0.25)))
    assert (skewed.pull_n.tolist(), skewed.push_n.tolist()) == ([1.0, 2.0], [1.0, 20.0])


@pytest.mark.parametrize(
    ("link_costs", "is_elastic", "workers", "measured"),
    [
        ("auto", True, UNKNOWN, True),
        ("auto", False, UNKNOWN, False),
        ("auto", True, (FAST, SLOW), False),
        ("measured", False, (FAST, SLOW), True),
        ("configured", True, UNKNOWN, False),
    ],
)
def test_links_are_measured_where_that_is_set_or_nothing_is_known_of_them(
    link_costs: str, is_elastic: bool, workers: tuple[WorkerLink, ...], measured: bool
) -> None:
    feedback = Feedback(DispatchConfig.model_validate({"link_costs": link_costs}), is_elastic, ROW_BYTES)
    feedback.start_generation(workers)
    assert feedback.measures_links is measured


def test_measured_links_are_kept_over_generations() -> None:
    feedback = Feedback(DispatchConfig(link_costs="measured"), is_elastic=False, row_bytes=ROW_BYTES)
    steps = Steps(feedback, UNKNOWN)
    assert feedback.start_generation(UNKNOWN).pull_n.tolist() == [1.0, 1.0]
    for _ in range(8):
        steps.complete(link_seconds=(0.01, 0.04))
    assert feedback.measured_gbit("b") == pytest.approx(0.2)
    assert feedback.start_generation(UNKNOWN).pull_n.tolist() == [1.0, 4.0]


@pytest.mark.parametrize(("links", "cost"), [((FAST, SLOW), FAST.gbit / 2), ((), UNKNOWN_GBIT / 2)])
def test_the_shared_link_costs_what_the_fastest_would_take_for_a_row(
    links: tuple[WorkerLink, ...], cost: float
) -> None:
    feedback = Feedback(DispatchConfig(), is_elastic=False, row_bytes=ROW_BYTES, server_gbit=2.0)
    feedback.start_generation(links)
    assert feedback.server_cost == cost
    assert Feedback(DispatchConfig(), is_elastic=False, row_bytes=ROW_BYTES).server_cost == 0.0

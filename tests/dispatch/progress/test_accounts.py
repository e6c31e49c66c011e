import numpy as np
import pytest
from msgspec import structs

from dispatch.placement.traffic import WorkerTraffic
from dispatch.progress.accounts import Accounts
from dispatch.progress.status import EventCounts, Status
from dispatch.tally import NO_SECONDS, PhaseSeconds

MOVED = WorkerTraffic(samples=4, lookups=10, hits=9, miss_pulls=1, update_pushes=3, pulled_bytes=70)


def pulling(seconds: float) -> PhaseSeconds:
    return structs.replace(NO_SECONDS, pull=float(seconds))


def train(accounts: Accounts, labels: list[float]) -> None:
    accounts.quality.add(np.zeros(len(labels)), np.array(labels))
    accounts.end_step(len(labels))


def status(accounts: Accounts) -> Status:
    return accounts.status("training", 1, 1, EventCounts())


def test_quality_since_the_mark_covers_what_came_after_exactly_so_many_samples() -> None:
    accounts = Accounts("r", "esd:1", mark_at=4)
    train(accounts, [0, 1, 0, 1])
    assert status(accounts).since_mark is not None
    train(accounts, [1, 0, 1])
    since = status(accounts).since_mark
    assert since is not None
    assert (since.quality.samples, since.quality.auc) == (3, 0.5)


def test_a_run_that_is_paused_has_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    accounts, now = Accounts("r", "esd:1"), [0.0]
    monkeypatch.setattr("dispatch.progress.times.monotonic", lambda: now[0])
    for now[0] in (1.0, 2.0):
        train(accounts, [0, 1])
    rates = [accounts.status(state, 1, 1, EventCounts()).samples_per_second for state in ("training", "paused")]
    assert rates == [pytest.approx(2.0), 0.0]


def test_before_the_mark_nothing_is_measured_apart() -> None:
    accounts = Accounts("r", "esd:1", mark_at=5)
    train(accounts, [0, 1, 0, 1])
    assert status(accounts).since_mark is None


def test_rounds_are_added_to_their_worker() -> None:
    accounts = Accounts("r", "esd:1")
    for seconds in (0.25, 0.75):
        accounts.add_round("a", MOVED, pulling(seconds))
        accounts.add_round("b", WorkerTraffic(), pulling(9.0))
    first, second = status(accounts).workers
    assert (first.name, first.traffic, first.seconds) == ("a", MOVED + MOVED, pulling(0.5))
    assert (second.name, second.traffic, second.seconds) == ("b", WorkerTraffic(), NO_SECONDS)


def test_speeds_are_those_of_the_link_and_unknown_ones_are_left_out() -> None:
    accounts = Accounts("r", "esd:1")
    accounts.set_speeds("a", 5.0, 0.0)
    accounts.set_speeds("b", 0.0, 0.4)
    workers = status(accounts).workers
    assert [(worker.link_gbit, worker.measured_gbit) for worker in workers] == [(5.0, None), (None, 0.4)]


def test_those_have_left_who_are_no_members() -> None:
    accounts = Accounts("r", "esd:1", mark_at=1)
    for name in ("a", "b"):
        accounts.add_round(name, MOVED, pulling(1.0))
    assert [worker.has_left for worker in status(accounts).workers] == [False, False]
    train(accounts, [0, 1])
    accounts.set_members(["b"])
    shown = status(accounts)
    assert [worker.has_left for worker in shown.workers] == [True, False]
    assert shown.since_mark is not None
    assert [worker.has_left for worker in shown.since_mark.workers] == [True, False]


def test_those_are_parked_who_were_named_last() -> None:
    accounts = Accounts("r", "joint:elastic")
    accounts.set_parked(("a", "b"))
    accounts.set_parked(("b", "c"))
    for name in "abc":
        accounts.set_speeds(name, 1.0, 0.0)
    assert [(worker.name, worker.is_parked) for worker in status(accounts).workers] == [
        ("a", False),
        ("b", True),
        ("c", True),
    ]


def test_what_came_after_the_mark_is_measured_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    accounts, now = Accounts("r", "esd:1", mark_at=4), [0.0]
    monkeypatch.setattr("dispatch.progress.times.monotonic", lambda: now[0])
    accounts.times.begin(idle=True)
    for number, seconds in enumerate((10.0, 12.0, 16.0)):
        now[0] = seconds
        accounts.decisions.add(0.001 * (number + 1), is_late=number == 2, is_shortened=False)
        accounts.add_round("a", MOVED, pulling(number))
        train(accounts, [0, 1, 0, 1])
    accounts.add_round("late", MOVED, pulling(1.0))
    since = status(accounts).since_mark
    assert since is not None
    assert (since.steps, since.samples, since.seconds, since.deadline_misses) == (2, 8, 6.0, 1)
    assert (since.decide_ms_p50, since.decide_ms_p99) == pytest.approx((2.5, 2.99))
    assert [worker.traffic for worker in since.workers] == [MOVED + MOVED, MOVED]
    assert [worker.seconds for worker in since.workers] == [pulling(1.5), pulling(0.5)]

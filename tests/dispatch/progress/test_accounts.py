import numpy as np
import pytest
from msgspec import structs

from dispatch.crew import Member
from dispatch.progress.accounts import Accounts
from dispatch.progress.status import EventCounts
from dispatch.protocol import Report
from dispatch.rows.plan import Traffic
from ps.protocol import TRAIN

MEMBERS = (Member("a", b"", "a:1", 5.0), Member("b", b"", "b:1", 0.0))


def traffic(reduced: int = 0, **columns: list[int]) -> Traffic:
    names = ("lookups", "miss_pull", "full_pull", "update_push", "evict_push", "flush_push", "owned_push")
    arrays = {name: np.array(columns.get(name, [0, 0]), np.int64) for name in names}
    return Traffic(**arrays, reduced=reduced)  # type: ignore[arg-type]


def report(seconds: dict[str, float]) -> Report:
    common = {"run": "r", "generation": 1, "step": 1, "phase": TRAIN, "worker": 1}
    return Report(**common, seconds=seconds, pulled_bytes=70, pushed_bytes=80)  # type: ignore[arg-type]


def train(accounts: Accounts, labels: list[float]) -> None:
    accounts.quality.add(np.zeros(len(labels)), np.array(labels))
    accounts.end_step(len(labels))


def test_quality_since_the_mark_covers_what_came_after_exactly_so_many_samples() -> None:
    accounts = Accounts("r", "esd:1", mark_at=4)
    train(accounts, [0, 1, 0, 1])
    assert accounts.status("training", 1, 1, EventCounts()).since_mark is not None
    train(accounts, [1, 0, 1])
    since = accounts.status("training", 1, 2, EventCounts()).since_mark
    assert since is not None
    assert (since.samples, since.auc) == (3, 0.5)


def test_traffic_and_reports_are_booked_to_their_worker_and_kind() -> None:
    accounts = Accounts("r", "esd:1")
    moved = traffic(lookups=[10, 20], miss_pull=[1, 2], update_push=[3, 4], evict_push=[5, 6], reduced=9)
    accounts.add_traffic(MEMBERS, moved)
    accounts.add_report(MEMBERS[1], structs.replace(report({"pull": 0.5}), reduced_bytes=90), 7)
    first, second = accounts.status("training", 1, 1, EventCounts()).workers
    assert (first.name, first.link_gbit, first.lookups, first.hits, first.miss_pulls) == ("a", 5.0, 10, 9, 1)
    assert (second.link_gbit, second.update_pushes, second.evict_pushes) == (None, 4, 6)
    assert (second.samples, second.pulled_bytes, second.pushed_bytes) == (7, 70, 80)
    assert (first.all_reduces, second.all_reduces, second.reduced_bytes) == (9, 9, 90)
    assert second.seconds == {"pull": 0.5}


def test_what_came_after_the_mark_is_measured_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    accounts, now = Accounts("r", "esd:1", mark_at=4), [0.0]
    monkeypatch.setattr("dispatch.progress.accounts.monotonic", lambda: now[0])
    accounts.begin()
    for number, seconds in enumerate((10.0, 12.0, 16.0)):
        now[0] = seconds
        accounts.add_decision(0.001 * (number + 1), is_late=number == 2)
        accounts.add_traffic(MEMBERS, traffic(lookups=[10, 20], miss_pull=[1, 2], update_push=[3, 4]))
        accounts.add_report(MEMBERS[0], report({"pull": float(number)}), 4)
        train(accounts, [0, 1, 0, 1])
    measured = accounts.status("training", 1, 3, EventCounts()).measured
    assert measured is not None
    assert (measured.steps, measured.samples, measured.seconds, measured.deadline_misses) == (2, 8, 6.0, 1)
    assert (measured.decide_ms_p50, measured.decide_ms_p99) == pytest.approx((2.5, 2.99))
    first = measured.workers[0]
    assert (first.samples, first.lookups, first.hits, first.miss_pulls, first.update_pushes) == (8, 20, 18, 2, 6)
    assert first.seconds == {"pull": 1.5}


def test_a_step_s_time_runs_from_the_last_one_s_end_unless_nothing_was_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accounts, now = Accounts("r", "esd:1"), [0.0]
    monkeypatch.setattr("dispatch.progress.accounts.monotonic", lambda: now[0])
    for begins, idle, ends in ((0.0, True, 1.0), (1.5, False, 2.0), (10.0, True, 11.0)):
        now[0] = begins
        accounts.begin(idle)
        now[0] = ends
        accounts.end_step(1)
    assert accounts.status("training", 1, 3, EventCounts()).step_ms == 1000.0


def test_rate_is_that_of_the_latest_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    accounts, now = Accounts("r", "esd:1"), [0.0]
    monkeypatch.setattr("dispatch.progress.accounts.monotonic", lambda: now[0])
    for seconds, samples in ((0.0, 100), (100.0, 100), (101.0, 50), (102.0, 50)):
        now[0] = seconds
        accounts.end_step(samples)
    assert accounts.status("training", 1, 4, EventCounts()).samples_per_second == pytest.approx(50)

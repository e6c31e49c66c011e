import numpy as np
import pytest

from dispatch.accounts import Accounts
from dispatch.crew import Member
from dispatch.plan import Traffic
from dispatch.protocol import TRAIN, Report

MEMBERS = (Member("a", b"", "a:1", 5.0), Member("b", b"", "b:1", 0.0))


def traffic(**columns: list[int]) -> Traffic:
    names = ("lookups", "miss_pull", "full_pull", "update_push", "evict_push", "flush_push", "owned_push")
    return Traffic(**{name: np.array(columns.get(name, [0, 0]), np.int64) for name in names})


def train(accounts: Accounts, labels: list[float]) -> None:
    accounts.quality.add(np.zeros(len(labels)), np.array(labels))
    accounts.end_step(len(labels))


def test_quality_since_the_mark_covers_what_came_after_exactly_so_many_samples() -> None:
    accounts = Accounts("r", "esd:1", mark_at=4)
    train(accounts, [0, 1, 0, 1])
    assert accounts.status("training", 1, 1, 0).since_mark is not None
    train(accounts, [1, 0, 1])
    since = accounts.status("training", 1, 2, 0).since_mark
    assert since is not None
    assert (since.samples, since.auc) == (3, 0.5)


def test_traffic_and_reports_are_booked_to_their_worker_and_kind() -> None:
    accounts = Accounts("r", "esd:1")
    moved = traffic(lookups=[10, 20], miss_pull=[1, 2], update_push=[3, 4], evict_push=[5, 6])
    accounts.add_traffic(MEMBERS, moved)
    common = {"run": "r", "generation": 1, "step": 1, "phase": TRAIN, "worker": 1}
    accounts.add_report(MEMBERS[1], Report(**common, seconds={"pull": 0.5}, pulled_bytes=70, pushed_bytes=80), 7)  # type: ignore[arg-type]
    first, second = accounts.status("training", 1, 1, 0).workers
    assert (first.name, first.link_gbit, first.lookups, first.hits, first.miss_pulls) == ("a", 5.0, 10, 9, 1)
    assert (second.link_gbit, second.update_pushes, second.evict_pushes) == (None, 4, 6)
    assert (second.samples, second.pulled_bytes, second.pushed_bytes) == (7, 70, 80)
    assert second.seconds == {"pull": 0.5}


def test_rate_is_that_of_the_latest_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    accounts, now = Accounts("r", "esd:1"), [0.0]
    monkeypatch.setattr("dispatch.accounts.monotonic", lambda: now[0])
    for seconds, samples in ((0.0, 100), (100.0, 100), (101.0, 50), (102.0, 50)):
        now[0] = seconds
        accounts.end_step(samples)
    assert accounts.status("training", 1, 4, 0).samples_per_second == pytest.approx(50)

"""Snapshots while somebody serves the model: published, judged, measured, and never older than before."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dispatch.checkpoints import retention
from dispatch.job import GateRule, Publishing
from infra.base.storage import Storage
from ingest.streams.source import Record
from ps.checkpoints.manifest import CheckpointManifest, manifest_numbers, read_manifest
from ps.config import CheckpointConfig, RowConfig
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.crashing import Strike, check_run, train_struck
from tests.end_to_end.listening import Heard, StandIn
from tests.end_to_end.threads import RUN, Plan, train
from tests.end_to_end.withheld import Withheld, paused
from tests.ports import free_port

SMALL: dict[str, Any] = {"batch": 32, "rows": RowConfig(dim=4), "cache_rows": 600, "silence_seconds": 20.0}
AT_ONCE = Publishing(seconds=0.0)


@contextmanager
def served(plan: Plan) -> Iterator[StandIn]:
    with closing(StandIn(RUN, lambda: plan.feed, plan.folder / "checkpoints", answer_seconds=0.2)) as there:
        there.start()
        yield there


def planned(folder: Path, **values: Any) -> Plan:
    fixed: dict[str, Any] = {**SMALL, "feed": f"tcp://127.0.0.1:{free_port()}", "publishing": AT_ONCE}
    return Plan(folder, **{**fixed, **values})


def manifests(plan: Plan) -> list[CheckpointManifest]:
    storage = Storage.at(plan.folder / "checkpoints")
    return [read_manifest(storage, number) for number in manifest_numbers(storage)]


@pytest.fixture
def keeps_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """All snapshots are kept, for the test to look at."""
    monkeypatch.setattr(retention, "SERVED", 100_000)


def test_snapshots_go_out_while_somebody_serves_and_change_no_bit(keeps_all: None, write_topic: WriteTopic) -> None:
    plan, heard = planned(write_topic(48 * 32), write_behind=0.5), list[Heard]()
    plan = paused(plan, 40, lambda: len(heard) >= 3)
    with served(plan) as server:
        heard = server.heard
        result = train(plan)
    assert len(server.heard) >= 3
    assert server.heard == sorted(server.heard)
    assert server.delivered > 0
    assert server.unreadable == []
    published = [checkpoint for checkpoint in manifests(plan) if checkpoint.is_publication]
    assert {checkpoint for _, _, checkpoint in server.heard} <= {checkpoint.number for checkpoint in manifests(plan)}
    assert len(published) >= 3
    assert all(checkpoint.figures.newest_event_seconds > 0 for checkpoint in published)
    found = result.status.served
    assert found.servers == 1
    assert found.step is not None
    assert found.step > 0
    assert found.freshness.events > 0
    assert found.freshness.p50_seconds is not None
    assert found.freshness.age_seconds is not None
    check_run(plan, result, 48 * 32)  # trained again, without a server


class Unclicked(Withheld):
    """A log in which nobody clicks for a while, and no other records follow until something has happened."""

    first, last = 40 * 32, 52 * 32

    def read(self, partition: int, offset: int, max_bytes: int = 1 << 20) -> list[Record]:
        return [self._unclicked(record) for record in super().read(partition, offset, max_bytes)]

    def _unclicked(self, record: Record) -> Record:
        if not self.first <= record.offset < self.last:
            return record
        event = msgspec.json.decode(record.payload)
        event["label"] = 0
        return msgspec.structs.replace(record, payload=msgspec.json.encode(event))


def test_snapshots_are_held_back_while_nobody_clicks_and_good_again_later_although_no_server_can_score(
    keeps_all: None, write_topic: WriteTopic
) -> None:
    folder = write_topic(100 * 32, partitions=1)
    rule = GateRule(samples=256)

    def has_wrong_snapshot() -> bool:
        return any(48 <= checkpoint.step <= 52 for checkpoint in manifests(plan))

    source = {"open_source": lambda: Unclicked(folder, Unclicked.last, has_wrong_snapshot)}
    plan = planned(folder, publishing=Publishing(0.0, rule), **source)
    with served(plan):
        train(plan)
    held = {checkpoint.step: checkpoint.verdict.reasons for checkpoint in manifests(plan)}
    wrong = [reasons for step, reasons in held.items() if 48 <= step <= 52]
    assert wrong
    assert all("0 of the latest 256 samples are clicks" in " ".join(reasons) for reasons in wrong)
    assert any(not reasons for step, reasons in held.items() if step > 60)


SEAMS_OF_ALL = ("pull", "journalled", "gathering"), ("before_manifest", "push_half_applied", "after_manifest")


@pytest.mark.parametrize("seams", SEAMS_OF_ALL)
def test_publishing_goes_on_after_crashes_and_never_goes_back(write_topic: WriteTopic, seams: tuple[str, ...]) -> None:
    folder, events = write_topic(32 * 32, partitions=1), 32 * 32
    strikes = [Strike(seam, 6 + 6 * number) for number, seam in enumerate(seams)]
    heard: list[Heard] = []

    def is_over() -> bool:
        return all(strike.victim for strike in strikes) and heard[-1:] > [Heard(0, 20, 0)]

    plan = planned(
        folder,
        open_source=lambda: Withheld(folder, 28 * 32, is_over),
        checkpoints=CheckpointConfig(seconds=0.3, kept=1000),
    )
    with served(plan) as server:
        heard = server.heard
        result = train_struck(plan, *strikes)
    check_run(plan, result, events)
    assert server.heard == sorted(server.heard)
    assert server.unreadable == []


def test_snapshots_of_void_steps_are_followed_by_those_of_a_higher_line(write_topic: WriteTopic) -> None:
    folder, events = write_topic(32 * 32, partitions=1), 32 * 32
    strike, heard = Strike("forward", 8, is_replaced=False), list[Heard]()

    def is_over() -> bool:
        return bool(strike.victim) and heard[-1:] > [Heard(1, 0, 0)]

    source = {"open_source": lambda: Withheld(folder, 20 * 32, is_over)}
    plan = planned(folder, **source, replace_seconds=0.1, checkpoints=CheckpointConfig(seconds=0.3, kept=1000))
    with served(plan) as server:
        heard = server.heard
        result = train_struck(plan, strike)
    assert result.status.samples == events
    assert server.heard == sorted(server.heard)
    assert server.heard[-1].timeline == 1 == max(checkpoint.timeline for checkpoint in manifests(plan))

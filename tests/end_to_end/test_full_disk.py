"""A full disk: a checkpoint without room is lost alone, and training waits for room for its journal."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from dispatch.journal.history import read_history
from dispatch.progress.publisher import StatusPublisher
from dispatch.progress.status import Status
from infra.base.storage import Storage
from ps.checkpoints.manifest import manifest_numbers
from ps.config import CheckpointConfig
from tests.disks import fill, small_disk
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.interrupting import golden
from tests.end_to_end.threads import WAIT_SECONDS, Plan, Threads, model_of, train, wait_for_steps

STEPS, BATCH = 60, 64


def plan_on(folder: Path, write_topic: WriteTopic, checkpoints: CheckpointConfig) -> Plan:
    """A run in that folder, with its events in another."""
    events = write_topic(STEPS * BATCH)
    (folder / "log").symlink_to(events / "log")
    return Plan(folder, cache_rows=300, checkpoints=checkpoints)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Status]:
    """Every status that is published."""
    statuses, publish = list[Status](), StatusPublisher.publish

    def note(publisher: StatusPublisher, status: Status) -> None:
        statuses.append(status)
        publish(publisher, status)

    monkeypatch.setattr(StatusPublisher, "publish", note)
    monkeypatch.setattr(StatusPublisher, "is_due", True)
    return statuses


def troubles(told: list[Status]) -> str:
    """All that was told, which is over at the end."""
    assert told[-1].troubles == ()
    return "; ".join(trouble for status in told for trouble in status.troubles)


def test_training_waits_for_room_for_its_journal_and_loses_nothing(
    tmp_path: Path, write_topic: WriteTopic, told: list[Status]
) -> None:
    with small_disk(tmp_path / "disk", 16_384) as disk, capture_logs() as logs:
        plan = plan_on(disk, write_topic, CheckpointConfig(seconds=0))

        def make_room(_threads: Threads, _dispatcher: str, _shards: tuple[str, ...]) -> None:
            wait_for_steps(plan, 5)
            filling, until = fill(disk), time.monotonic() + WAIT_SECONDS
            while not any("training pauses" in line["event"] for line in logs):
                assert time.monotonic() < until, "the disk did not become full"
                time.sleep(0.01)
            filling.unlink()

        result = train(plan, beside=make_room)
        assert "training waits until the journal can be written: " in troubles(told)
        assert [line["event"] for line in logs].count("training pauses until the journal can be written") == 1
        assert result.status.samples == STEPS * BATCH
        history = read_history(disk / "journal")
        assert history.ended is not None
        assert model_of(train(golden(replace(plan, folder=disk)))) == model_of(result)


def test_a_checkpoint_without_room_costs_that_checkpoint_alone(
    tmp_path: Path, write_topic: WriteTopic, told: list[Status]
) -> None:
    with small_disk(tmp_path / "disk", 5_000) as disk, capture_logs() as logs:
        folder = tmp_path / "of checkpoints"
        folder.mkdir()
        (folder / "checkpoints").symlink_to(disk)
        plan = plan_on(folder, write_topic, CheckpointConfig(seconds=0.001, kept=1000))
        result = train(plan)
        assert result.status.samples == STEPS * BATCH
        assert any(line["event"].startswith("checkpoint failed") for line in logs), "there was room for all checkpoints"
        assert any("no checkpoint could be taken" in trouble for status in told for trouble in status.troubles)
        history = read_history(folder / "journal")
        taken = [checkpoint.number for checkpoint in history.checkpoints]
        assert taken
        assert manifest_numbers(Storage.at(folder / "checkpoints")) == taken

"""A run goes on with other numbers of shards and workers than it had, and its model is that of its journal's replay."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from dispatch.coordinator import Coordinator
from dispatch.dense import Reduce
from ps.config import CheckpointConfig, RowConfig
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.crashing import patient_for
from tests.end_to_end.interrupting import golden, interrupt
from tests.end_to_end.operating import digests, history_of, redecided
from tests.end_to_end.threads import Plan, train
from trainer.config import ModelConfig

STEPS, BATCH = 24, 32
CHECKPOINTS = CheckpointConfig(seconds=0, kept=100)
ADAM = ModelConfig(mlp=(16, 8), cross_layers=1, dense_optimizer="adam")
SGD = ModelConfig(mlp=(16, 8), cross_layers=1, dense_optimizer="sgd")


@pytest.fixture(autouse=True)
def _checkpoint_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint is begun after every third step, and is there when the next one but one is decided."""
    checkpoint_if_due = Coordinator.checkpoint_if_due

    def checkpoint(coordinator: Coordinator, decider: Any) -> None:
        coordinator.commands.targets.wants_checkpoint |= coordinator.intake.step % 3 == 0
        checkpoint_if_due(coordinator, decider)
        while coordinator.intake.step % 3 == 1 and coordinator.checkpointing.is_underway:
            coordinator.poll(0.01)

    monkeypatch.setattr(Coordinator, "checkpoint_if_due", checkpoint)


def interrupt_after_a_checkpoint(plan: Plan, step: int) -> None:
    """Ends the dispatcher at a step that is behind the last checkpoint."""
    interrupt(plan, step)
    history = history_of(plan)
    assert 0 < history.checkpoints[-1].step < history.step == step


def expect_replayed(plan: Plan, **changes: Any) -> None:
    """Goes on to the end; a replay of the journal, by other numbers again, comes to the same model."""
    result = train(plan)
    history = history_of(plan)
    assert result.status.samples == STEPS * BATCH
    again = golden(plan, workers=history.workers, policy="random", **changes)
    replayed = train(again)
    assert digests(again, replayed) == digests(plan, result)
    assert replayed.status.quality == result.status.quality


@pytest.mark.parametrize(
    ("rows", "model", "reduce"),
    [
        (RowConfig(dim=5, optimizer="adagrad"), ADAM, "hub"),
        (RowConfig(dim=5, optimizer="rowwise_adagrad"), ADAM, "ring"),
        (RowConfig(dim=5, optimizer="sgd"), SGD, "hub"),
    ],
)
def test_rows_are_dealt_anew_to_other_shards(
    write_topic: WriteTopic, rows: RowConfig, model: ModelConfig, reduce: Reduce
) -> None:
    folder = write_topic(STEPS * BATCH, poison=0.05)
    common: dict[str, Any] = {"folder": folder, "batch": BATCH, "checkpoints": CHECKPOINTS, "silence_seconds": 20.0}
    common |= {"rows": rows, "model": model, "reduce": reduce, "policy": "random"}
    interrupt_after_a_checkpoint(Plan(**common, shards=1), 8)
    interrupt_after_a_checkpoint(Plan(**common, shards=3), 16)
    expect_replayed(Plan(**common, shards=2), shards=1)
    assert [past.record.base for past in history_of(Plan(**common)).generations][1:] != [0, 0], "checkpoints were used"


@pytest.mark.parametrize("reduce", ["hub", "ring"])
def test_fewer_workers_decide_the_steps_since_the_checkpoint_anew(write_topic: WriteTopic, reduce: Reduce) -> None:
    folder = write_topic(STEPS * BATCH, poison=0.05)
    common: dict[str, Any] = {"folder": folder, "batch": BATCH, "checkpoints": CHECKPOINTS, "silence_seconds": 20.0}
    common |= {"rows": RowConfig(dim=5), "reduce": reduce, "policy": "esd:1", "replace_seconds": 0.2}
    interrupt_after_a_checkpoint(Plan(**common, workers=4), 8)
    with capture_logs() as logs, patient_for(lambda: 2):
        expect_replayed(Plan(**common, workers=2), shards=3)
    told = [line["event"] for line in logs if line["log_level"] == "warning"]
    assert "no replacement in time; steps since the last checkpoint are decided anew" in told
    history = history_of(Plan(**common))
    assert redecided(Plan(**common)) == 1
    assert [len(past.record.members) for past in history.generations] == [4, 2]
    assert history.generations[1].steps[0].step <= 8, "the steps since the checkpoint are those of two workers"


def test_more_workers_repeat_the_steps_and_then_all_take_part(write_topic: WriteTopic) -> None:
    folder = write_topic(STEPS * BATCH, poison=0.05)
    common: dict[str, Any] = {"folder": folder, "batch": BATCH, "checkpoints": CHECKPOINTS, "silence_seconds": 20.0}
    common |= {"rows": RowConfig(dim=5), "policy": "esd:1"}
    interrupt_after_a_checkpoint(Plan(**common, workers=2), 8)
    expect_replayed(Plan(**common, workers=4))
    history = history_of(Plan(**common))
    assert redecided(Plan(**common)) == 0
    assert sorted(history.members) == ["worker-0", "worker-1", "worker-2", "worker-3"]  # numbered as they confirm
    assert [past.steps[-1].step for past in history.generations if len(past.record.members) == 2] == [8]

"""The next step is decided while the step before it is ordered; that changes nothing but the time it takes."""

import pytest

from dispatch.coordinator import Coordinator
from dispatch.intake import Intake
from dispatch.journal.history import read_history
from ingest.batches.batch import Batch
from ps.config import RowConfig
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.operating import digests
from tests.end_to_end.threads import Plan, train

STEPS, BATCH = 12, 32


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Steps that were ordered while the next one was being decided; the stream always has the next batch in time."""
    seen: list[int] = []
    order, next_batch = Coordinator.order, Intake.next_batch

    def note(coordinator: Coordinator, step: int, *arguments: object) -> None:
        if coordinator.deciding is not None:
            assert coordinator.training.decider.is_deciding
            seen.append(step)
        order(coordinator, step, *arguments)  # type: ignore[arg-type]

    def wait_for_batch(intake: Intake, timeout_seconds: float) -> Batch | None:
        return next_batch(intake, max(timeout_seconds, 20.0))

    monkeypatch.setattr(Coordinator, "order", note)
    monkeypatch.setattr(Intake, "next_batch", wait_for_batch)
    return seen


@pytest.mark.parametrize("policy", ["esd:1", "joint"])
def test_every_step_but_the_first_is_decided_while_another_is_ordered(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch, ahead: list[int], policy: str
) -> None:
    plan = Plan(write_topic(STEPS * BATCH), policy=policy, batch=BATCH, rows=RowConfig(dim=4))
    result = train(plan)
    assert ahead == list(range(1, STEPS))

    one_by_one = Plan(write_topic(STEPS * BATCH, "other"), policy=policy, batch=BATCH, rows=RowConfig(dim=4))
    monkeypatch.setattr(Coordinator, "begin_next_decision", lambda coordinator, decider: None)
    ahead.clear()
    expected = train(one_by_one)
    assert ahead == []
    assert digests(plan, result) == digests(one_by_one, expected)
    decided, again = (read_history(each.folder / "journal").steps for each in (plan, one_by_one))
    assert [step.assignment for step in decided] == [step.assignment for step in again]
    assert [step.rows for step in decided] == [step.rows for step in again]

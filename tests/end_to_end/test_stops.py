"""A run that is stopped in order saves its model and goes on when started again; the end of its stream ends it."""

from typing import Any

import pytest

from dispatch.coordinator import Coordinator
from dispatch.dense import Reduce
from dispatch.errors import RunEnded
from dispatch.journal.history import History, read_history
from infra.base.process import Stop
from ingest.letters.embedded import read_dead_letters
from ps.config import RowConfig
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.interrupting import golden
from tests.end_to_end.threads import Plan, model_of, train, wait_for_steps
from tests.end_to_end.withheld import paused

EVENTS = 640


def history_of(plan: Plan) -> History:
    return read_history(plan.folder / "journal")


@pytest.mark.parametrize("reduce", ["hub", "ring"])
def test_a_run_that_was_stopped_goes_on_from_its_checkpoint_and_equals_its_replay(
    write_topic: WriteTopic, reduce: Reduce
) -> None:
    common: dict[str, Any] = {"rows": RowConfig(dim=5), "batch": 32, "reduce": reduce}
    plan, stop = Plan(write_topic(EVENTS, poison=0.05), policy="random", **common), Stop()

    def stop_early(*_: object) -> None:
        wait_for_steps(plan, 5)
        stop.request("SIGTERM")

    first = train(paused(plan, 8, lambda: stop.requested), stop, stop_early)
    history = history_of(plan)
    assert (history.ended, first.status.samples < EVENTS) == (None, True)
    assert history.stopped is not None
    assert (history.stopped.reason, history.stopped.step) == ("SIGTERM", history.step)
    assert history.checkpoints[-1].step == history.step
    replay = golden(plan, folder=plan.folder.parent / "stopped")
    assert model_of(train(replay)) == model_of(first)
    replayed = history_of(replay).ended
    assert replayed is not None
    assert replayed.rows_digest == history.stopped.rows_digest
    result = train(plan)
    again = history_of(plan)
    assert (result.status.samples, again.stopped) == (EVENTS, history.stopped)
    assert again.ended is not None
    assert [past.steps[0].step for past in again.generations] == [1, history.step + 1], "nothing was trained again"
    assert model_of(train(golden(plan))) == model_of(result)
    letters = [(letter.partition, letter.offset) for letter in read_dead_letters(plan.stream.folder)]
    assert len(set(letters)) == len(letters) == result.status.events.dead_letters > EVENTS * 0.03
    with pytest.raises(RunEnded, match="end of stream"):
        train(plan)


def test_when_the_last_worker_leaves_the_run_can_go_on(write_topic: WriteTopic) -> None:
    plan, leaves = Plan(write_topic(EVENTS), batch=32), Stop()

    def leave(*_: object) -> None:
        wait_for_steps(plan, 5)
        leaves.request("test")

    train(paused(plan, 8, lambda: False), beside=leave, worker_stop=leaves)
    stopped = history_of(plan).stopped
    assert stopped is not None
    assert stopped.reason == "the last worker left"
    assert train(plan).status.samples == EVENTS


def test_a_stop_once_all_samples_are_trained_ends_the_run(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, stop, flush = Plan(write_topic(EVENTS), batch=32, samples=96), Stop(), Coordinator.flush

    def stop_late(coordinator: Coordinator, *arguments: Any) -> None:
        stop.request("SIGTERM")
        flush(coordinator, *arguments)

    monkeypatch.setattr(Coordinator, "flush", stop_late)
    assert train(plan, stop).status.samples == 96
    assert history_of(plan).ended is not None

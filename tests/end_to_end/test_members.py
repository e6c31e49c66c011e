"""Workers come, go, are replaced and removed while a run trains; commands have one effect, and no bit changes."""

from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from dispatch.coordinator import Coordinator
from dispatch.errors import CommandRefused
from dispatch.peers.roster import Roster
from dispatch.placement.rows.directory import Directory
from infra.base.process import Stop
from ingest.letters.embedded import read_dead_letters
from ingest.streams.position import Position
from ps.config import CheckpointConfig, RowConfig
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.interrupting import golden, interrupt
from tests.end_to_end.operating import (
    commands_of,
    crash_once,
    digests,
    history_of,
    listed,
    members,
    operated,
    redecided,
    restarted,
    stopping,
    tell,
    wait_for,
    wait_for_members,
    wait_for_more,
    wait_until_at_rest,
)
from tests.end_to_end.threads import Plan, Result, Threads, model_of, start_worker, train, wait_for_steps
from trainer.errors import Removed

EVENTS, BATCH = 4_000, 32
OFTEN, NEVER = CheckpointConfig(seconds=0.1, kept=100), CheckpointConfig(seconds=0, kept=100)
ROWS = RowConfig(dim=4)


def expect_whole(plan: Plan, result: Result) -> None:
    """Ranges tile, each rejected event is one letter, and the model is that of a replay of the journal."""
    history = history_of(plan)  # which is strict about ranges
    letters = [(x.partition, Position(x.offset, x.index)) for x in read_dead_letters(plan.stream.folder)]
    # discarded steps may have written letters of events that nobody has come to again when the run is stopped
    ends = history.positions
    trained = [(partition, at) for partition, at in letters if at < ends[partition] or not history.timeline]
    assert len(set(letters)) == len(letters)
    assert len(trained) == sum(step.manifest.rejected for step in history.steps) > 0
    again = golden(plan, workers=history.workers, policy="random")
    replayed = train(again)
    assert digests(again, replayed) == digests(plan, result)
    assert replayed.status.quality == result.status.quality
    ended = history_of(again).ended
    assert ended is not None
    assert ended.differs_at is None


# ── everything in one run ─────────────────────────────────────────────────────────────────────────────────────────────
class Operator:
    """Does to a run what can be done to it; ``seen`` is requested once all of it has happened."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.seen = plan, Stop()
        self.removed = Threads()

    def act(self, threads: Threads, dispatcher: str, _shards: tuple[str, ...]) -> None:
        self.join_and_drain(threads, dispatcher)
        self.refuse()
        self.replace(threads, dispatcher)
        self.pause()
        self.seen.request("all has been tried")

    def join_and_drain(self, threads: Threads, dispatcher: str) -> None:
        """2 → 4 → 1, the first of the first two goes, too."""
        plan = self.plan
        wait_for_more(plan, 3)
        for name in ("worker-2", "worker-3"):
            start_worker(threads, plan, name, dispatcher)
        wait_for(lambda: len(members(plan)) == 4 and "waiting" not in members(plan).values(), "four train")
        wait_for_more(plan, 3)
        for name in ("worker-0", "worker-3", "worker-2"):
            assert tell(plan, "drain", name, key=f"drain {name}").startswith(f"worker {name} leaves after step ")
            wait_for(lambda name=name: name not in members(plan), f"{name} has left")  # type: ignore[misc]
        assert list(members(plan)) == ["worker-1"]
        assert tell(plan, "drain", "worker-0", key="drain worker-0").startswith("worker worker-0 leaves after step ")

    def refuse(self) -> None:
        for verb in ("drain", "remove"):
            with pytest.raises(CommandRefused, match="'worker-1' is the last one; expected another that stays; add"):
                tell(self.plan, verb, "worker-1")
            with pytest.raises(CommandRefused, match="there is no worker 'worker-9'; expected one of worker-1"):
                tell(self.plan, verb, "worker-9")

    def replace(self, threads: Threads, dispatcher: str) -> None:
        """Another one joins and is removed; the one that stays goes on at once."""
        plan = self.plan
        start_worker(self.removed, plan, "worker-5", dispatcher)
        wait_for(lambda: len(members(plan)) == 2 and "waiting" not in members(plan).values(), "the next one has joined")
        wait_for_more(plan, 3)  # of which one has been trained: a thread that forms a ring cannot be interrupted
        assert "is removed" in tell(plan, "remove", "worker-5")
        wait_for(lambda: list(members(plan)) == ["worker-1"], "it is alone again")
        wait_for_more(plan, 2)

    def pause(self) -> None:
        plan = self.plan
        assert tell(plan, "pause").startswith("paused after step ")
        wait_until_at_rest(plan)
        assert listed(plan).is_paused
        at = history_of(plan).step
        assert tell(plan, "resume") == f"goes on after step {at}"
        wait_for_more(plan, 1)
        checkpoints = len(history_of(plan).checkpoints)
        tell(plan, "checkpoint")
        wait_for(lambda: len(history_of(plan).checkpoints) > checkpoints, "a checkpoint is taken")


@pytest.mark.parametrize(
    ("policy", "checkpoints", "more"),
    [
        ("esd:1", NEVER, {"reduce": "ring", "rows": RowConfig(dim=4, optimizer="rowwise_adagrad")}),
        ("het", OFTEN, {"reduce": "hub", "rows": RowConfig(dim=4, optimizer="sgd"), "write_behind": 0.5}),
        ("joint:elastic", NEVER, {"cache_rows": 600, "write_behind": 1.0}),
        ("fae:0.15:4", OFTEN, {"cache_rows": 1500}),
    ],
)
def test_members_and_pauses_change_no_bit(
    write_topic: WriteTopic, policy: str, checkpoints: CheckpointConfig, more: dict[str, Any]
) -> None:
    settings: dict[str, Any] = {"batch": BATCH, "rows": ROWS, "replace_seconds": 600.0, "stop_at_end": False, **more}
    plan = operated(write_topic(EVENTS, poison=0.05), policy=policy, checkpoints=checkpoints, **settings)
    operator = Operator(plan)
    result = train(plan, operator.seen, stopping(operator.seen, operator.act))
    with pytest.raises(Removed, match="worker 'worker-5' was removed from the run"):
        operator.removed.join()
    drained = [("drain", name) for name in ("worker-0", "worker-3", "worker-2")]
    assert commands_of(plan) == [*drained, ("remove", "worker-5"), ("pause", ""), ("resume", ""), ("checkpoint", "")]
    assert history_of(plan).draining == frozenset()
    expect_whole(plan, result)


# ── those who stay ────────────────────────────────────────────────────────────────────────────────────────────────────
def at_step(monkeypatch: pytest.MonkeyPatch, step: int, act: Callable[[Coordinator], None]) -> None:
    """Has something done in the dispatcher right after a step has been ordered for the first time."""
    order, acted = Coordinator.order, list[int]()

    def order_and_act(coordinator: Coordinator, at: int, *arguments: Any) -> None:
        order(coordinator, at, *arguments)
        if at == step and not acted:
            acted.append(at)
            act(coordinator)

    monkeypatch.setattr(Coordinator, "order", order_and_act)


def test_members_that_stay_keep_their_caches_and_pull_less(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    common: dict[str, Any] = {"workers": 3, "policy": "random", "batch": BATCH, "rows": ROWS}
    pulled, results = list[int](), list[Result]()
    for name in ("kept", "emptied"):
        with capture_logs() as logs, monkeypatch.context() as patched:
            at_step(patched, 10, lambda coordinator: coordinator.crew.roster.drain("worker-1"))
            if name == "emptied":
                patched.setattr(Directory, "continue_from", lambda _self, _other, before: [False] * len(before))
            results.append(train(Plan(write_topic(640, name), **common)))
        kept = [line["caches_kept"] for line in logs if line["event"] == "generation started"]
        assert kept == ([0, 2] if name == "kept" else [0, 0])
        pulled.append(sum(worker.traffic.miss_pulls for worker in results[-1].status.workers))
    assert pulled[0] < pulled[1]
    assert model_of(results[0]) == model_of(results[1])


def test_a_worker_may_leave_during_a_replay_and_goes_when_it_is_over(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, leaves = operated(write_topic(640, poison=0.05), policy="random", batch=BATCH, rows=ROWS), Stop()
    interrupt(plan, 9)
    asked, leave = list[bytes](), Roster.leave

    def note(roster: Roster, sender: bytes, has_trained: bool) -> None:
        asked.append(sender)
        leave(roster, sender, has_trained)

    def have_it_leave(coordinator: Coordinator) -> None:
        assert coordinator.state == "replaying"
        leaves.request("SIGTERM")
        while not asked:
            coordinator.poll(0.05)

    at_step(monkeypatch, 5, have_it_leave)
    monkeypatch.setattr(Roster, "leave", note)
    result = train(plan, leaving_worker=leaves)
    monkeypatch.undo()
    history = history_of(plan)
    assert (result.status.samples, redecided(plan)) == (640, 0)
    assert history.generations[-1].record.members == ("worker-0",)
    expect_whole(plan, result)


# ── a dispatcher that ends in between ─────────────────────────────────────────────────────────────────────────────────
def test_a_pause_survives_a_crash_and_a_restart_and_a_command_has_one_effect(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = operated(write_topic(1_280, poison=0.05), policy="random", batch=BATCH, rows=ROWS, checkpoints=OFTEN)
    stop, states = Stop(), list[str]()

    def pause(*_: object) -> None:
        wait_for_steps(plan, 3)
        said = tell(plan, "pause", key="the pause")  # the dispatcher ends before it rests
        wait_until_at_rest(plan)
        assert tell(plan, "pause", key="the pause") == said
        assert listed(plan).is_paused
        stop.request("SIGTERM")

    crash_once(monkeypatch, Coordinator, "rest", lambda *_: True)
    with restarted(monkeypatch, plan) as crashes:
        train(plan, stop, stopping(stop, pause))
    assert len(crashes) == 1
    at = history_of(plan).step

    def go_on(*_: object) -> None:
        wait_for(lambda: len(members(plan)) == 2 and listed(plan).generation > generation, "all are there again")
        assert (listed(plan).is_paused, history_of(plan).step) == (True, at)
        assert tell(plan, "pause", key="the pause") == f"paused after step {at}"
        wait_for(lambda: "paused" in states, "the status says so")
        assert tell(plan, "resume") == f"goes on after step {at}"

    generation, publish = history_of(plan).last_generation, Coordinator.status

    def note(coordinator: Coordinator) -> Any:
        states.append(coordinator.state)
        return publish(coordinator)

    monkeypatch.setattr(Coordinator, "status", note)
    stop = Stop()
    result = train(plan, stop, stopping(stop, go_on))
    monkeypatch.undo()
    assert result.status.samples == 1_280
    assert commands_of(plan) == [("pause", ""), ("resume", "")]
    expect_whole(plan, result)


def test_a_drain_on_record_is_carried_out_by_the_next_dispatcher(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = operated(write_topic(EVENTS, poison=0.05), workers=3, policy="random", batch=BATCH, rows=ROWS)
    seen, crashed = Stop(), list[str]()

    def drain(*_: object) -> None:
        wait_for_steps(plan, 3)
        crashed.append(tell(plan, "drain", "worker-1", key="once"))
        wait_for(lambda: list(members(plan)) == ["worker-0", "worker-2"], "it has left")
        wait_for_more(plan, 2)
        seen.request("drained")

    crash_once(monkeypatch, Roster, "drain", lambda *_: True)
    with restarted(monkeypatch, plan) as crashes:
        result = train(Plan(**{**vars(plan), "stop_at_end": False}), seen, stopping(seen, drain))
    assert len(crashes) == len(crashed) == 1
    assert (commands_of(plan), redecided(plan)) == ([("drain", "worker-1")], 0)
    assert history_of(plan).members == ("worker-0", "worker-2")
    expect_whole(plan, result)


def test_commands_to_a_run_without_workers_are_answered_and_take_effect(write_topic: WriteTopic) -> None:
    plan = operated(write_topic(640, poison=0.05), policy="random", batch=BATCH, rows=ROWS)
    interrupt(plan, 9)

    def operate(threads: Threads, dispatcher: str, _shards: tuple[str, ...]) -> None:
        assert members(plan) == {}
        with pytest.raises(CommandRefused, match="there is no worker 'worker-0'; expected one of none"):
            tell(plan, "drain", "worker-0")
        assert tell(plan, "pause").startswith("paused after step ")
        for name in ("worker-0", "worker-1", "worker-2"):
            start_worker(threads, plan, name, dispatcher)
        wait_until_at_rest(plan)
        assert history_of(plan).step == 9
        assert tell(plan, "drain", "worker-2")
        wait_for_members(plan, "worker-0", "worker-1")
        assert history_of(plan).step == 9
        assert tell(plan, "resume") == "goes on after step 9"

    stop = Stop()
    result = train(Plan(**{**vars(plan), "started_workers": 0}), stop, stopping(stop, operate))
    assert result.status.samples == 640
    expect_whole(plan, result)

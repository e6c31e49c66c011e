"""A run is steered over its control socket: everything holds from the next decided step on, and no bit changes."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from dispatch.alpha.window import StepSeconds
from dispatch.commands.client import carry_out as send
from dispatch.commands.client import command as send_command
from dispatch.commands.policy import PolicyCommand
from dispatch.commands.protocol import Command, CommandAnswered
from dispatch.commands.stop import StopCommand
from dispatch.coordinator import Coordinator
from dispatch.errors import CommandOutdated, CommandRefused
from dispatch.feed.client import read_feed
from dispatch.journal.history import read_history
from dispatch.journal.log import read_records
from dispatch.journal.records import AlphaChanged, Commanded, Faulted, GenerationStarted, StepDecided, StepDone
from dispatch.placement.assign.worth import Worth
from infra.base.process import ProcessPlace, Stop
from ps.config import CheckpointConfig, RowConfig
from tests.control_plane.folding import read_journal
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.crashing import Strike, train_struck
from tests.end_to_end.interrupting import golden
from tests.end_to_end.operating import (
    crash_once,
    digests,
    history_of,
    operated,
    restarted,
    stopping,
    supply,
    wait_for,
    wait_for_more,
)
from tests.end_to_end.processes import children_of, run, start, wait_until
from tests.end_to_end.threads import RUN, WAIT_SECONDS, Plan, Result, Threads, train
from trainer.errors import Rejected

EVENTS, BATCH = 2_000, 32
SETTINGS: dict[str, Any] = {
    "batch": BATCH,
    "rows": RowConfig(dim=4),
    "stop_at_end": False,
    "checkpoints": CheckpointConfig(seconds=0, kept=100),
}
Act = Callable[[Plan], object]


def set_to(plan: Plan, verb: str, value: str = "", worker: str = "", key: str = "") -> CommandAnswered:
    return send_command(plan.control, RUN, verb, worker, value, key=key, timeout_seconds=WAIT_SECONDS)


def alpha(key: str, value: str, expected: int) -> Command:
    return Command(run=RUN, generation=-1, step=-1, id=key, verb="alpha", value=value, expected=expected)


def steered(plan: Plan, act: Act) -> Result:
    """Trains while something is done to the run, and stops once it is."""
    stop = Stop()

    def do(_threads: Threads, _dispatcher: str, _shards: tuple[str, ...]) -> None:
        wait_for_more(plan, 3)
        act(plan)
        wait_for_more(plan, 3)
        stop.request("all has been tried")

    return train(plan, stop, stopping(stop, do))


def records_after(plan: Plan, verb: str) -> list[Any]:
    """Everything on record behind the first command of that kind."""
    records = list(read_records(plan.folder / "journal"))
    places = (place for place, record in enumerate(records) if isinstance(record, Commanded) and record.verb == verb)
    return records[next(places) + 1 :]


def on_record(plan: Plan, key: str) -> list[tuple[str, int]]:
    """What the journal says was answered to a command, and at which cursor."""
    found = ((record, frame.cursor) for frame in read_journal(plan.folder / "journal") for record in frame.records)
    return [(record.text, cursor) for record, cursor in found if isinstance(record, Commanded) and record.id == key]


def decided_after(plan: Plan, verb: str) -> list[StepDecided]:
    return [record for record in records_after(plan, verb) if isinstance(record, StepDecided)]


def generations(plan: Plan) -> list[GenerationStarted]:
    return [record for record in read_records(plan.folder / "journal") if isinstance(record, GenerationStarted)]


def expect_replay(plan: Plan, result: Result) -> None:
    again = golden(plan, workers=history_of(plan).workers, policy="random")
    assert digests(again, train(again)) == digests(plan, result)


# ── values ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_alpha_is_in_force_at_the_next_decided_step_and_the_next_status(write_topic: WriteTopic) -> None:
    plan = operated(write_topic(EVENTS), **SETTINGS)

    def act(plan: Plan) -> None:
        told = Command(
            run=RUN, generation=-1, step=-1, id="k", verb="alpha", value="0.25", actor="eve", reason="try it"
        )
        answer = send(plan.control, told, timeout_seconds=WAIT_SECONDS)
        assert answer.text.startswith("alpha is 0.25 from step ")
        assert answer.cursor > 0

    result = steered(plan, act)
    assert {step.alpha for step in decided_after(plan, "alpha")} == {0.25}
    assert (result.status.alpha, result.status.alpha_mode, result.status.opt_backend) == (0.25, "manual", "cpu")
    command = next(record for record in read_records(plan.folder / "journal") if isinstance(record, Commanded))
    assert (command.value, command.actor, command.reason) == ("0.25", "eve", "try it")
    assert command.at_seconds > 0
    expect_replay(plan, result)


def test_deadline_links_and_lag_bound_are_set(write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = operated(write_topic(EVENTS), links=(1.0, 1.0), **SETTINGS)
    seen: dict[str, Any] = {}
    original = Coordinator.decide

    def decide(coordinator: Coordinator, *arguments: Any) -> Any:
        training = coordinator.training
        seen["costs"] = training.decider._row_cost_n.tolist()
        seen["deadline"] = training.feedback.has_deadline
        seen["skip"] = coordinator.steering.skip_above
        return original(coordinator, *arguments)

    monkeypatch.setattr(Coordinator, "decide", decide)

    def act(plan: Plan) -> None:
        assert seen == {"costs": [1.0, 1.0], "deadline": False, "skip": None}
        set_to(plan, "link", "0.25", "worker-1")
        set_to(plan, "deadline", "true")
        set_to(plan, "skip_above", "1000000")

    result = steered(plan, act)
    assert seen == {"costs": [1.0, 4.0], "deadline": True, "skip": 1_000_000}
    assert {worker.name: worker.link_gbit for worker in result.status.workers} == {"worker-0": 1.0, "worker-1": 0.25}
    expect_replay(plan, result)


def test_shares_of_one_worker_are_bounded(write_topic: WriteTopic) -> None:
    plan = operated(write_topic(EVENTS), policy="joint:elastic", **SETTINGS)
    result = steered(plan, lambda plan: set_to(plan, "shares", "0:0.25", "worker-1"))
    most = max(step.assignment.count(1) for step in decided_after(plan, "shares"))
    assert most <= BATCH / 2 * 0.25
    bounds = {worker.name: (worker.least_share, worker.largest_share) for worker in result.status.workers}
    assert bounds == {"worker-0": (0.0, 4.0), "worker-1": (0.0, 0.25)}
    expect_replay(plan, result)


def test_values_that_cannot_be_are_refused_and_nothing_is_on_record(write_topic: WriteTopic) -> None:
    plan = operated(write_topic(EVENTS), **SETTINGS)
    refused: list[tuple[str, str, str, str]] = [
        ("alpha", "2", "", r"alpha cannot be '2'; expected a number from 0 to 1, or auto"),
        ("alpha", "nan", "", r"alpha cannot be 'nan'"),
        ("policy", "best", "", r"the policy stays as it is: policy cannot be built; got 'best'; expected one of"),
        ("policy", "fae:0.99:4", "", r"the policy stays as it is: "),
        ("deadline", "maybe", "", r"deadline cannot be 'maybe'; expected true or false"),
        ("skip_above", "-1", "", r"skip_above cannot be '-1'; expected a whole number from 1 to"),
        ("link", "fast", "worker-1", r"link cannot be 'fast'; expected Gbit/s from 0"),
        ("link", "1", "worker-9", r"there is no worker 'worker-9'; expected one of worker-0, worker-1"),
        ("shares", "0:2", "worker-1", r"policy 'esd:1' gives all workers equal shares; expected one that ends in"),
    ]

    def act(plan: Plan) -> None:
        for verb, value, worker, reason in refused:
            with pytest.raises(CommandRefused, match=reason):
                set_to(plan, verb, value, worker)

    steered(plan, act)
    assert history_of(plan).commands == ()


def test_a_command_given_at_an_old_cursor_is_outdated(write_topic: WriteTopic) -> None:
    plan = operated(write_topic(EVENTS), **SETTINGS)

    def act(plan: Plan) -> None:
        cursor = set_to(plan, "alpha", "0.5").cursor
        set_to(plan, "pause")
        with pytest.raises(CommandOutdated) as caught:
            send(plan.control, alpha("late", "0", cursor), timeout_seconds=WAIT_SECONDS)
        newest = caught.value.cursor
        assert newest > cursor
        send(plan.control, alpha("new", "1", newest), timeout_seconds=WAIT_SECONDS)
        set_to(plan, "resume")

    steered(plan, act)
    assert [(command.verb, command.value) for command in history_of(plan).commands] == [
        ("alpha", "0.5"),
        ("pause", ""),
        ("alpha", "1"),
        ("resume", ""),
    ]


# ── policies ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_policy_that_needs_the_same_decides_in_the_same_generation(write_topic: WriteTopic) -> None:
    plan = operated(write_topic(EVENTS), **SETTINGS)
    result = steered(plan, lambda plan: set_to(plan, "policy", "esd:0.5"))
    assert len(generations(plan)) == 1
    assert {step.alpha for step in decided_after(plan, "policy")} == {0.5}
    assert result.status.policy == "esd:0.5"
    expect_replay(plan, result)


@pytest.mark.parametrize("policy", ["het", "fae:0.3:2", "joint:elastic"])
def test_a_policy_that_needs_other_things_starts_a_generation(write_topic: WriteTopic, policy: str) -> None:
    plan = operated(write_topic(EVENTS), reduce="ring", **SETTINGS)
    result = steered(plan, lambda plan: set_to(plan, "policy", policy))
    first, second = generations(plan)
    assert (second.reason, second.members) == ("policy changed", first.members)
    assert (second.replicas > 0) == policy.startswith("fae")
    assert {step.manifest.generation for step in decided_after(plan, "policy")} == {2}
    expect_replay(plan, result)


def test_while_the_kernels_of_a_policy_are_compiled_the_dispatcher_is_there_for_everyone(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, began, may_end = operated(write_topic(EVENTS), **SETTINGS), Event(), Event()

    def compile_kernels(policy: str, *_: object) -> None:
        if policy == "het":
            began.set()
            assert may_end.wait(WAIT_SECONDS)

    def act(plan: Plan) -> None:
        set_to(plan, "policy", "het")
        assert began.wait(WAIT_SECONDS)
        decided = len(history_of(plan).steps)
        set_to(plan, "checkpoint")
        assert len(history_of(plan).steps) == decided, "nothing is decided until the policy can decide"
        may_end.set()

    monkeypatch.setattr("dispatch.steering.kernels.warm_up", compile_kernels)
    assert steered(plan, act).status.policy == "het"


# ── crashes ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_command_has_one_effect_though_the_dispatcher_dies_before_it_answers(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = operated(write_topic(EVENTS), **SETTINGS)
    crash_once(monkeypatch, PolicyCommand, "act", lambda *_: True)
    answers: list[CommandAnswered] = []
    with restarted(monkeypatch, plan) as crashes:
        result = steered(plan, lambda plan: answers.append(set_to(plan, "policy", "het", key="k")))
    assert len(crashes) == 1
    assert [(answer.text, answer.cursor) for answer in answers] == on_record(plan, "k")
    assert [(command.id, command.value) for command in history_of(plan).commands] == [("k", "het")]
    assert {step.manifest.generation for step in decided_after(plan, "policy")} == {generations(plan)[-1].number}
    assert result.status.policy == "het"
    expect_replay(plan, result)


def test_what_was_set_survives_a_restart_and_trimming(write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**SETTINGS, "checkpoints": CheckpointConfig(seconds=0, kept=1)}
    plan = operated(write_topic(EVENTS), **settings)
    dies, alphas, answers = Stop(), list[float](), list[CommandAnswered]()
    crash_once(monkeypatch, Coordinator, "order", lambda *_: dies.requested)

    def act(plan: Plan) -> None:
        answers.append(set_to(plan, "alpha", "0.25", key="k"))
        set_to(plan, "link", "0.5", "worker-1")
        set_to(plan, "checkpoint")
        wait_for(lambda: history_of(plan).commands == (), "the commands are trimmed")
        dies.request("now")
        supply(plan, 4)
        wait_for(lambda: bool(crashes), "the dispatcher has died")
        wait_for(lambda: history_of(plan).last_generation > 2, "it trains again")
        wait_for_more(plan, 1)
        answers.append(set_to(plan, "alpha", "0.25", key="k"))
        records = read_records(plan.folder / "journal")  # now: the checkpoint at the end trims them, too
        alphas.extend(record.alpha for record in records if isinstance(record, StepDecided))

    with restarted(monkeypatch, plan) as crashes:
        result = steered(plan, act)
    assert (len(crashes), alphas[-1]) == (1, 0.25)
    first, again = ((answer.text, answer.cursor) for answer in answers)
    assert first == again
    assert (result.status.alpha_mode, result.status.workers[1].link_gbit) == ("manual", 0.5)


def test_a_drain_is_not_forgotten_when_its_record_is_trimmed_and_the_dispatcher_dies(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change of members takes a checkpoint, which drops the record of the drain; then the dispatcher dies."""
    settings = {**SETTINGS, "checkpoints": CheckpointConfig(seconds=0, kept=1)}
    plan = operated(write_topic(EVENTS), **settings)

    def dies(coordinator: Coordinator, *_: object) -> bool:
        if coordinator.commands.desired.draining != ("worker-1",):
            return False
        while history_of(plan).commands:  # until the checkpoint behind the last step is the only one
            coordinator.poll()
        return True

    crash_once(monkeypatch, Coordinator, "start_generation", dies)
    with restarted(monkeypatch, plan) as crashes:
        steered(plan, lambda plan: set_to(plan, "drain", worker="worker-1"))
    assert len(crashes) == 1
    assert history_of(plan).members == ("worker-0",)


def test_who_was_removed_is_not_taken_by_a_new_dispatcher(write_topic: WriteTopic) -> None:
    plan = operated(write_topic(EVENTS), **SETTINGS)
    with pytest.raises(Rejected, match="'worker-1' was removed from the run"):
        steered(plan, lambda plan: set_to(plan, "remove", worker="worker-1"))
    with pytest.raises(Rejected, match="'worker-1' was removed from the run"):
        steered(plan, lambda plan: None)
    assert {past.record.members for past in history_of(plan).generations[1:]} == {("worker-0",)}


def test_stop_ends_the_run_to_be_resumed(write_topic: WriteTopic) -> None:
    plan = operated(write_topic(EVENTS), **SETTINGS)
    stop = Stop()

    def act(_threads: Threads, _dispatcher: str, _shards: tuple[str, ...]) -> None:
        wait_for_more(plan, 3)
        told = Command(run=RUN, generation=-1, step=-1, id="s", verb="stop", actor="eve")
        send(plan.control, told, timeout_seconds=WAIT_SECONDS)

    train(plan, stop, stopping(stop, act))
    stopped = history_of(plan).stopped
    assert stopped is not None
    assert stopped.reason == "stopped by eve"


# ── what is read ──────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_stop_on_record_is_carried_out_by_the_next_dispatcher(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = operated(write_topic(EVENTS), **SETTINGS)
    crash_once(monkeypatch, StopCommand, "act", lambda *_: True)
    stop = Stop()

    def act(_threads: Threads, _dispatcher: str, _shards: tuple[str, ...]) -> None:
        wait_for_more(plan, 3)
        set_to(plan, "stop", key="s")

    with restarted(monkeypatch, plan) as crashes:
        train(plan, stop, stopping(stop, act))
    stopped = history_of(plan).stopped
    assert (len(crashes), stopped is not None and stopped.reason) == (1, "stopped by a command")


def test_a_completed_step_has_its_figures_and_the_feed_has_them_too(write_topic: WriteTopic) -> None:
    @dataclass
    class Found:
        endpoint: str = ""

    found, plan = Found(), operated(write_topic(EVENTS), **SETTINGS)
    pages: list[int] = []
    with pytest.MonkeyPatch.context() as patched:
        original = Coordinator.start_generation

        def note(coordinator: Coordinator, *arguments: Any) -> Any:
            found.endpoint = coordinator.parts.endpoints[3]
            return original(coordinator, *arguments)

        patched.setattr(Coordinator, "start_generation", note)

        def act(plan: Plan) -> None:
            wait_for_more(plan, 6)
            page = read_feed(found.endpoint, RUN, 0, timeout_seconds=WAIT_SECONDS)
            pages.append(len(page.records))

        result = steered(plan, act)
    done = [record.figures for record in read_records(plan.folder / "journal") if isinstance(record, StepDone)]
    figures = [each for each in done if each is not None]
    assert len(figures) == len(done) > 5
    assert pages[0] > 5
    quality = result.status.quality
    assert sum(each.samples for each in figures) >= quality.samples - 2 * BATCH
    assert all(each.moved_bytes > 0 and each.seconds > 0 and 0 <= each.clicks <= each.samples for each in figures)
    assert all(0 < each.loss < 10 * each.samples for each in figures)


def test_a_fault_is_on_record(write_topic: WriteTopic) -> None:
    plan = Plan(write_topic(600), **{**SETTINGS, "stop_at_end": True})
    strike = Strike("after_pull")
    train_struck(plan, strike)
    faults = [record for record in read_records(plan.folder / "journal") if isinstance(record, Faulted)]
    assert [(fault.kind, fault.generation) for fault in faults] == [("CrewFailed", 1)]
    assert strike.victim in faults[0].text
    assert (faults[0].step >= 6, faults[0].at_seconds > 0) == (True, True)


# ── alpha by contention ───────────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Wanted:
    alpha: float
    backend: str = "cpu"
    reason: str = "contended"
    readings: Any = None


class OnePilot:
    """Wants a quarter, once it has seen a decision."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.is_noted = False
        self.last = None

    def train_with(self, workers: Iterable[ProcessPlace]) -> None:
        self.workers = list(workers)

    def begin(self, alpha: float, ceiling: float, backend: str, may_move: bool) -> None:
        self.begun.append(alpha)
        self.is_noted = False

    def note(self, seconds: float, cpu_seconds: float, step: StepSeconds, worth: Worth | None) -> None:
        self.is_noted = seconds >= cpu_seconds > 0

    def sample_and_decide(self, now: float) -> Wanted | None:
        wants, self.is_noted = self.is_noted and len(self.begun) == 1, False
        return Wanted(0.25, readings={"pressure": 0.5}) if wants else None


def test_alpha_follows_the_pilot_until_a_person_sets_it(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    pilot, plan = OnePilot(), operated(write_topic(EVENTS), **SETTINGS)
    monkeypatch.setattr("dispatch.parts.AlphaPilot", lambda *_sizes, **_tempo: pilot)

    def act(plan: Plan) -> None:
        assert pilot.begun == []
        set_to(plan, "alpha", "auto")
        wait_for(lambda: any(step.alpha == 0.25 for step in history_of(plan).steps), "the pilot is heard")
        set_to(plan, "alpha", "0.75")
        wait_for(lambda: any(step.alpha == 0.75 for step in history_of(plan).steps), "a person is")
        set_to(plan, "alpha", "auto")

    result = steered(plan, act)
    changes = [record for record in read_records(plan.folder / "journal") if isinstance(record, AlphaChanged)]
    assert {(change.alpha, change.reason) for change in changes} == {(0.25, "contended")}
    assert changes[0].readings == {"pressure": 0.5}
    assert pilot.begun == [1.0, 0.25]
    assert {place.pid for place in pilot.workers} == {os.getpid()}  # workers are threads here
    assert result.status.alpha_mode == "auto"


# ── real processes ────────────────────────────────────────────────────────────────────────────────────────────────────
def test_stop_ends_every_process_with_status_0(tmp_path: Path) -> None:
    settings = ("stream.batch=32", "dispatch.workers=1", "ps.shards=1", "api.port=0", "rows.dim=4", f"run={RUN}")
    log, folder = ["--set", f"stream.folder={tmp_path / 'log'}"], tmp_path / "run"
    assert run("produce", "--limit", "3000", *log).returncode == 0
    given = [part for setting in settings for part in ("--set", setting)]
    process = start("up", "--run", folder, *log, *given)
    try:
        wait_until(lambda: read_history(folder / "journal").step > 2, process)
        _workers, _status, control, feed = (folder / "endpoints" / "dispatcher").read_text().split()
        assert read_feed(feed, RUN, 0).newest > 2
        send_command(control, RUN, "stop", timeout_seconds=WAIT_SECONDS)
        output, _ = process.communicate(timeout=300)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, children_of(folder)) == (0, []), output
    stopped = read_history(folder / "journal").stopped
    assert stopped is not None
    assert stopped.reason == "stopped by a command"
    assert f"stopped; 'freshet up --no-serve --run {folder}' resumes it" in output

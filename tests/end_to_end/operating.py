"""What an operator does to a run in threads: commands, and dispatchers that end and are started again meanwhile."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from dispatch.commands.client import ask_members, command
from dispatch.commands.protocol import Members
from dispatch.journal.history import History, read_history
from dispatch.journal.log import read_records
from dispatch.journal.records import Commanded, Redecided
from dispatch.main import run_dispatcher
from infra.base.process import Stop
from tests.end_to_end.conftest import write_clicks
from tests.end_to_end.interrupting import Crash
from tests.end_to_end.threads import RUN, WAIT_SECONDS, Plan, Result
from tests.ports import free_port


def operated(folder: Any, **settings: Any) -> Plan:
    """A run whose dispatcher takes commands at a known endpoint."""
    return Plan(folder, **{"control": f"tcp://127.0.0.1:{free_port()}", "silence_seconds": 20.0, **settings})


def tell(plan: Plan, verb: str, worker: str = "", key: str = "") -> str:
    """Has a command carried out and returns the answer."""
    return command(plan.control, RUN, verb, worker, key=key, timeout_seconds=WAIT_SECONDS).text


def members(plan: Plan) -> dict[str, str]:
    """What each worker is doing, by name."""
    return {member.name: member.state for member in listed(plan).members}


def listed(plan: Plan) -> Members:
    return ask_members(plan.control, RUN, timeout_seconds=WAIT_SECONDS)


def history_of(plan: Plan) -> History:
    return read_history(plan.folder / "journal")


def commands_of(plan: Plan) -> list[tuple[str, str]]:
    """Verb and worker of every command on record."""
    records = read_records(plan.folder / "journal")
    return [(record.verb, record.worker) for record in records if isinstance(record, Commanded)]


def redecided(plan: Plan) -> int:
    """How often steps were decided anew."""
    return sum(isinstance(record, Redecided) for record in read_records(plan.folder / "journal"))


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Polls until a condition holds."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.01)


def wait_for_members(plan: Plan, *names: str) -> None:
    """Until exactly these workers train."""
    expected = dict.fromkeys(names, "training")
    wait_for(lambda: members(plan) == expected, f"{', '.join(names)} train")


def supply(plan: Plan, steps: int) -> None:
    """Events for so many steps and some more: a run that has been faster than its test may have trained all others."""
    if plan.open_source is None and not plan.stop_at_end:
        write_clicks(plan.folder, (steps + 4) * plan.batch)


def wait_for_more(plan: Plan, steps: int) -> None:
    """Until so many more steps are on record."""
    supply(plan, steps)
    until = history_of(plan).step + steps
    wait_for(lambda: history_of(plan).step >= until, f"step {until} is on record")


def wait_until_at_rest(plan: Plan) -> None:
    """Until a run that is paused has taken the checkpoint behind its last step."""

    def has_rested() -> bool:
        history = history_of(plan)
        return bool(history.checkpoints) and history.checkpoints[-1].step == history.step

    wait_for(has_rested, "the run is at rest")


def stopping(stop: Stop, act: Callable[..., None]) -> Callable[..., None]:
    """The same act; if it fails, the run that it is done to stops, instead of waiting for what does not come."""

    def act_or_stop(*arguments: Any) -> None:
        try:
            act(*arguments)
        except BaseException:
            stop.request("the test has failed")
            raise

    return act_or_stop


@contextmanager
def restarted(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> Iterator[list[Crash]]:
    """Inside, a dispatcher that crashes is started again, while shards and workers stay; yields the crashes."""
    crashes: list[Crash] = []

    def run_again(job: Any, source: Any, letters: Any, stop: Stop, on_ready: Any, meter: Any) -> Any:
        try:
            return run_dispatcher(job, source, letters, stop, on_ready, meter)
        except Crash as crash:
            crashes.append(crash)
        source.close()
        letters.close()
        with closing(plan.source()) as its_source, closing(plan.letters()) as its_letters:
            return run_again(job, its_source, its_letters, stop, _nothing, meter)

    with monkeypatch.context() as patched:
        patched.setattr("tests.end_to_end.threads.run_dispatcher", run_again)
        yield crashes


def crash_once(monkeypatch: pytest.MonkeyPatch, owner: type, verb: str, when: Callable[..., bool]) -> None:
    """The first time that a verb is to be done and the condition holds, the dispatcher ends instead."""
    original, crashed = getattr(owner, verb), list[Crash]()

    def crash(*arguments: Any, **named: Any) -> Any:
        if not crashed and when(*arguments):
            crashed.append(Crash())
            raise crashed[0]
        return original(*arguments, **named)

    monkeypatch.setattr(owner, verb, crash)


def digests(plan: Plan, result: Result) -> tuple[str, dict[str, bytes]]:
    """Every bit of a model: of its rows as its journal has their digest, and of its dense weights."""
    history = history_of(plan)
    ended = history.ended or history.stopped
    assert ended is not None
    return ended.rows_digest, {name: weights.tobytes() for name, weights in result.dense.items()}


def _nothing(*_: object) -> None:
    return None

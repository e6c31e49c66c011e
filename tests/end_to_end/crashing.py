"""Whole runs in threads, some of which crash at a named seam (infra/base/faults.py) and are started anew."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dispatch.coordinator import Coordinator
from dispatch.journal.history import History, read_history
from dispatch.journal.run import RunJournal
from dispatch.main import run_dispatcher
from dispatch.progress.status import Status
from dispatch.recovery import assemble
from infra.base import faults
from infra.base.faults import DISPATCHER, SEAMS
from infra.base.process import Stop
from infra.base.telemetry import Meter
from ingest.letters.embedded import read_dead_letters
from ps.main import run_shard
from tests.end_to_end.interrupting import Crash, golden
from tests.end_to_end.threads import (
    Plan,
    Result,
    Threads,
    collect,
    dispatch_job,
    model_of,
    shard_job,
    train,
    worker_job,
)
from tests.ports import free_port
from trainer.dispatcher import Dispatcher
from trainer.errors import DispatcherLost
from trainer.main import run_worker

SOON_SECONDS = 0.1
"""between two offers to a dispatcher that may be new; seconds in a real run"""


@dataclass
class Strike:
    """A crash of whoever first reaches a seam, once training is so far."""

    seam: str
    """of those in the code, or one that the test adds"""
    step: int = 6
    """that somebody must have reached"""
    when: Callable[[], bool] = lambda: True
    is_replaced: bool = True
    victim: str = ""
    """who crashed; empty: nobody yet"""

    def is_due(self, name: str, newest: int) -> bool:
        is_it = self.seam not in SEAMS or name.split("-")[0] == SEAMS[self.seam].process
        return is_it and newest >= self.step and not self.victim and self.when()


@dataclass
class Strikes:
    """Stands in for the armed faults of a process: crashes the thread that reaches a seam."""

    strikes: Sequence[Strike]
    newest: int = 0
    """step that anyone has reached"""
    dying: set[str] = field(default_factory=set)
    """who crashed in one of its threads, and goes on in others until they reach a seam, too"""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reach(self, seam: str, step: int) -> None:
        name = name_of(threading.current_thread())
        with self._lock:
            if name in self.dying:
                raise Crash(f"{name} in another of its threads")
            self.newest = max(self.newest, step)
            for strike in self.strikes:
                if strike.seam == seam and strike.is_due(name, self.newest):
                    strike.victim = name
                    self.dying.add(name)
                    raise Crash(f"{name} at {seam}")

    def bury(self, name: str) -> None:
        """The one of that name has crashed in all of its threads."""
        with self._lock:
            self.dying.discard(name)

    def is_replaced(self, name: str) -> bool:
        """Whether the one of that name that has crashed is started anew."""
        return all(strike.is_replaced for strike in self.strikes if strike.victim == name)


def name_of(thread: threading.Thread) -> str:
    """Of the process that a thread stands for: the dispatcher has the test's own, and those that it starts."""
    first = thread.name.split()[0]
    return first if first.startswith(("worker-", "ps-")) else DISPATCHER


class Company:
    """Shards and workers of a run; each that crashes is started anew, and the others stay."""

    def __init__(self, plan: Plan, strikes: Strikes) -> None:
        self.plan, self.strikes, self.crashes = plan, strikes, list[str]()
        self.endpoint = f"tcp://127.0.0.1:{free_port()}"
        self.shards: dict[int, str] = {}
        """endpoints of the newest of each number"""
        self.threads, self.stop = Threads(), Stop()
        self.on_crash: Callable[[], None] = lambda: None
        """called when the dispatcher has crashed, before it is started anew"""
        self.is_abandoned = False
        """whether there will be no dispatcher any more"""

    def start(self) -> None:
        for number in range(self.plan.shards):
            self._keep(f"ps-{number}", self._serve, number)
        started = self.plan.workers if self.plan.started_workers is None else self.plan.started_workers
        for number in range(started):
            self.start_worker(f"worker-{number}")

    def start_worker(self, name: str) -> None:
        self._keep(name, self._work, name)

    def dispatch(self, stop: Stop | None = None) -> Status:
        """Trains to the end of the stream; a dispatcher that crashes is started anew, too."""
        while True:
            job, meter = dispatch_job(self.plan, self.endpoint), Meter(CollectorRegistry())
            with closing(self.plan.source()) as source, closing(self.plan.letters()) as letters:
                try:
                    return run_dispatcher(job, source, letters, stop or Stop(), lambda *_endpoints: None, meter)
                except Crash:
                    self.strikes.bury(DISPATCHER)
                    self.crashes.append(DISPATCHER)
            self.on_crash()

    def abandon(self) -> None:
        """Ends workers, which would wait for a dispatcher; their errors are of no interest."""
        self.is_abandoned = True
        self.stop.request("test has failed")
        with suppress(BaseException):
            self.threads.join()

    def _keep(self, name: str, run: Callable[..., None], *arguments: Any) -> None:
        def run_again() -> None:
            threading.current_thread().name = name
            while True:
                try:
                    return run(*arguments)
                except Crash:
                    self.strikes.bury(name)
                    self.crashes.append(name)
                    if not self.strikes.is_replaced(name):
                        return None

        self.threads.start(run_again)

    def _serve(self, number: int) -> None:
        job = shard_job(self.plan, number, self.endpoint)
        run_shard(job, self.stop, lambda endpoint: self.shards.update({number: endpoint}))

    def _work(self, name: str) -> None:
        run_worker(worker_job(self.plan, name, self.endpoint), Stop(), lambda: None)


@contextmanager
def company(plan: Plan, *strikes: Strike, trims: bool = False) -> Iterator[Company]:
    """Shards and workers without a dispatcher; everyone offers itself often, so that tests are short.

    The journal is kept whole unless ``trims``, so that a replay begins with the empty model and repeats every step.
    """
    there, offer_again = Company(plan, Strikes(strikes)), Dispatcher._offer_again

    def offer_unless_abandoned(dispatcher: Dispatcher) -> None:
        if there.is_abandoned:
            raise DispatcherLost("there will be none any more")
        offer_again(dispatcher)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Dispatcher, "_offer_again", offer_unless_abandoned)
        patched.setattr(faults, "_armed", there.strikes)
        patched.setattr("trainer.dispatcher.QUIET_SECONDS", SOON_SECONDS)
        patched.setattr("ps.main.OFFER_SECONDS", SOON_SECONDS)
        if not trims:
            patched.setattr(RunJournal, "trim", lambda *_arguments: None)
        there.start()
        try:
            yield there
        except BaseException:
            there.abandon()
            raise
        there.stop.request("test is over")
        there.threads.join()


@contextmanager
def patient_for(survivors: Callable[[], int]) -> Iterator[None]:
    """A dispatcher's patience with those who are lost begins once so many others are there, however long they take."""

    def assemble_after(coordinator: Coordinator, workers: int, patience_seconds: float | None = None) -> bool:
        is_there = patience_seconds is None or assemble(coordinator, survivors())
        return is_there and assemble(coordinator, workers, patience_seconds)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("dispatch.recovery.assemble", assemble_after)
        yield


def train_struck(plan: Plan, *strikes: Strike, on_crash: Callable[[], None] = lambda: None) -> Result:
    """Trains the topic to its end, with crashes; all of them have happened."""
    with company(plan, *strikes) as there:
        there.on_crash = on_crash
        status = there.dispatch()
        result = collect(plan, tuple(there.shards[number] for number in range(plan.shards)), status)
    assert sorted(there.crashes) == sorted(strike.victim for strike in strikes)
    return result


def check_run(plan: Plan, result: Result, events: int) -> History:
    """The run trained every event once, and equals an uninterrupted replay of its journal, bit for bit."""
    history = read_history(plan.folder / "journal")  # which checks that ranges tile
    assert history.samples == result.status.samples
    rejected = sum(step.manifest.rejected for step in history.steps)
    assert history.samples == events
    letters = [(x.partition, x.offset, x.index) for x in read_dead_letters(plan.folder / "log")]
    assert len(set(letters)) == len(letters) == rejected
    most = max(len(past.record.members) for past in history.generations)
    replayed = train(golden(plan, workers=most, started_workers=None))
    assert model_of(replayed) == model_of(result)
    assert replayed.status.quality == result.status.quality
    again = read_history(plan.folder.parent / "golden" / "journal")
    assert history.ended is not None
    assert again.ended is not None
    assert (history.ended.differs_at, again.ended.differs_at) == (None, None)
    assert again.ended.rows_digest == history.ended.rows_digest
    return history

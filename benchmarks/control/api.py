"""What the control plane does under load, and what it costs the training: one live run, asked from outside.

1. past      a run of many steps is put into the database
2. produce   events for the whole measurement are written ahead, so that the run is never short of them
3. up        ``freshet up`` trains them and serves the API beside; both share this machine's cores
4. reads     status as fast as a few clients can ask; then status and history of the past run, one client
5. windows   in turn: nobody asks, and the status is asked for at the given rate; steps a second by the journal

Windows of one run are compared with their neighbours, so that a slow machine, or one that is slow for a while, weighs
on both kinds alike. Clients are in a process of their own.
"""

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from api.job import database_url
from api.store.rows import Scope
from api.store.store import SqlStore
from benchmarks.control.load import AskedRoute, Clients, clients
from benchmarks.control.past import fill
from dispatch.journal.history import JOURNAL
from dispatch.journal.log import read_records
from dispatch.journal.records import StepDone
from infra.chaos.main import ChaosJob, SupervisedRun, end, launch, running
from infra.chaos.progress import Progress
from infra.errors import FreshetError

RUN, PAST = "run", "past"
SETTLED_STEPS = 30
CLIENTS = 8
READS_SECONDS = 5.0
PATIENCE_SECONDS = 120.0
SETTINGS = (
    *("dispatch.workers=2", "ps.shards=1", "stream.batch=512", "rows.dim=16", f"run={RUN}"),
    *("api.port=0", "api.requests_per_second=100000", "cuts.kept=100000"),  # all, so that the journal stays whole
)
"""of the run, before those that are given"""


@dataclass(frozen=True)
class ApiLoad:
    """What is measured, and for how long."""

    rate: float
    """requests a second in every other window"""
    window_seconds: float
    windows: int
    """of each kind"""
    past_steps: int
    events: int
    """written ahead"""


@dataclass(frozen=True)
class ApiResult:
    """Latencies are those of a client; the run trains all the time."""

    projected_per_second: float
    """steps of the past run that became rows"""
    status_per_second: float
    """requests, as fast as the clients can ask"""
    status_p50_ms: float
    status_p99_ms: float
    past_status_p50_ms: float
    past_status_p99_ms: float
    past_steps_p50_ms: float
    """all steps, in 500 points"""
    past_steps_p99_ms: float
    paced_per_second: float
    """requests in the windows with load"""
    paced_p50_ms: float
    paced_p99_ms: float
    steps_per_second_alone: float
    steps_per_second_loaded: float
    ratio: float
    """median over pairs of windows: steps a second with load to those without"""


def run_api_load(folder: Path, load: ApiLoad, settings: Sequence[str], tell: Callable[[str], None]) -> ApiResult:
    """Everything, in a folder of its own."""
    place = folder / RUN
    place.mkdir(parents=True)
    overrides = f"stream.folder={place / 'log'}", *SETTINGS, *settings
    options = tuple(part for override in overrides for part in ("--set", override))
    job = ChaosJob(place, 0, 0.0, 0.0, 0.0, options, PATIENCE_SECONDS)
    tell(f"writing a past run of {load.past_steps:,} steps")
    projected, token = asyncio.run(_prepare(database_url(None, folder), load.past_steps))
    tell(f"writing {load.events:,} events")
    _produce(job, load.events)
    with ExitStack() as resources:
        run = resources.enter_context(running(job))
        asking = resources.enter_context(clients())
        measurement = _Measurement(run, asking, _await_address(run), token, tell)
        return measurement.take(load, projected)


async def _prepare(database: str, steps: int) -> tuple[float, str]:
    """Fills the database; returns steps a second, and the secret of a token."""
    store = await SqlStore.open(database)
    try:
        scopes: tuple[Scope, ...] = ("read",)
        _, secret = await store.tokens.create("bench", scopes, None)
        return await fill(store, PAST, steps), secret
    finally:
        await store.close()


def _produce(job: ChaosJob, events: int) -> None:
    process = launch(job, "produce", "--limit", str(events), "--packed", "64")
    try:
        if status := process.wait(PATIENCE_SECONDS):
            raise FreshetError(f"freshet produce ended with status {status}; expected 0; see {job.folder}")
    finally:
        end(process, PATIENCE_SECONDS)


def _await_address(run: SupervisedRun) -> str:
    """Where the API listens, once the run trains."""
    progress, endpoint = Progress(run.job.folder), run.job.folder / "endpoints" / "api"
    until = time.monotonic() + PATIENCE_SECONDS
    while not endpoint.exists() or (progress.read_newest() or (0, 0))[1] < SETTLED_STEPS:
        if time.monotonic() > until or run.process.poll() is not None:
            raise FreshetError(f"no run after {PATIENCE_SECONDS:g} s; expected one that trains; see {run.job.folder}")
        time.sleep(0.2)
    return endpoint.read_text().strip()


@dataclass(frozen=True)
class _Measurement:
    """One run that trains, and who asks about it."""

    run: SupervisedRun
    clients: Clients
    address: str
    token: str
    tell: Callable[[str], None]

    def take(self, load: ApiLoad, projected: float) -> ApiResult:
        self.tell("reading")
        status = self.clients.ask(self._question(f"/v1/runs/{RUN}", READS_SECONDS, 0, CLIENTS)).result()
        past = self.clients.ask(self._question(f"/v1/runs/{PAST}", READS_SECONDS, 0, 1)).result()
        steps = self.clients.ask(self._question(f"/v1/runs/{PAST}/steps?points=500", READS_SECONDS, 0, 1)).result()
        alone, loaded, paced = [], [], []
        for number in range(load.windows):
            self.tell(f"windows {number + 1} of {load.windows}")
            began = time.time()
            time.sleep(load.window_seconds)
            alone.append((began, time.time()))
            began = time.time()
            question = self._question(f"/v1/runs/{RUN}", load.window_seconds, load.rate, CLIENTS)
            paced.append(self.clients.ask(question).result())
            loaded.append((began, time.time()))
        rates = steps_per_second(step_times(self.run.job.folder), [*alone, *loaded])
        without, with_load = rates[: load.windows], rates[load.windows :]
        return ApiResult(
            projected_per_second=projected,
            status_per_second=status.requests_per_second,
            status_p50_ms=status.p50_ms,
            status_p99_ms=status.p99_ms,
            past_status_p50_ms=past.p50_ms,
            past_status_p99_ms=past.p99_ms,
            past_steps_p50_ms=steps.p50_ms,
            past_steps_p99_ms=steps.p99_ms,
            paced_per_second=statistics.median(each.requests_per_second for each in paced),
            paced_p50_ms=statistics.median(each.p50_ms for each in paced),
            paced_p99_ms=max(each.p99_ms for each in paced),
            steps_per_second_alone=statistics.median(without),
            steps_per_second_loaded=statistics.median(with_load),
            ratio=statistics.median(b / a for a, b in zip(without, with_load, strict=True)),
        )

    def _question(self, path: str, seconds: float, rate: float, number: int) -> AskedRoute:
        return AskedRoute(self.address, path, self.token, seconds, rate, number)


def step_times(folder: Path) -> list[float]:
    """When each step was completed, by the journal."""
    done = (record for record in read_records(folder / JOURNAL) if isinstance(record, StepDone))
    return [record.figures.at_seconds for record in done if record.figures is not None]


def steps_per_second(times: Sequence[float], windows: Sequence[tuple[float, float]]) -> list[float]:
    """Of each window (from, to); raises FreshetError if there is one without a step: the events have run out."""
    rates = [sum(start <= at < stop for at in times) / (stop - start) for start, stop in windows]
    if not all(rates):
        raise FreshetError("a window has no step; expected the run to train all the time; raise --events")
    return rates

"""The control plane under load, and how much the load slows training down: one live run, queried from outside.

1. past: a run of many steps is put into the database
2. produce: events are written before each measurement, as many as it needs, so that the run never waits for them
3. up: ``freshet up`` trains them and serves the API; both share this machine's cores
4. reads: status as fast as a few clients can ask; then status and history of the past run, one client; of the history
   first the same page, which the API has cached, and then another one each time, which it has to build
5. windows: in turn without requests, and with requests for the status at the given rate; steps per second by the
   journal

Windows of one run are compared with their neighbours, so that a slow machine, or a slow phase, affects both kinds
alike. Clients are in a separate process. The cost of a request is the processor time of the API's process in windows
with load, less that in windows without, when it reads the journal and the status.
"""

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from api.store.store import SqlStore
from benchmarks.control.ahead import EventsAhead, events_ahead
from benchmarks.control.load import NUMBER, AskedRoute, Clients, Latencies, clients, pin
from benchmarks.control.past import fill
from dispatch.journal.history import JOURNAL
from dispatch.journal.log import read_records
from dispatch.journal.records import StepDone
from infra.base.errors import FreshetError
from infra.chaos.main import ChaosJob, SupervisedRun, running
from infra.chaos.progress import Progress
from infra.web.store.place import database_url
from infra.web.store.rows import Scope

RUN = "run"
PAST = "past"
SETTLED_STEPS = 30
FIRST_EVENTS = 1_000_000
"""Enough for a window of some seconds; how many longer ones need is known once the run trains."""
CLIENTS = 8
READS_SECONDS = 5.0
PATIENCE_SECONDS = 120.0
SETTINGS = (
    *("dispatch.workers=2", "ps.shards=1", "stream.batch=512", "stream.first_batch=0", "rows.dim=16", f"run={RUN}"),
    *(
        "api.port=0",
        "api.requests_per_second=100000",
        "checkpoints.kept=100000",
    ),  # all, so that the journal stays whole
)
"""Settings of the run, before those that are given."""


@dataclass(frozen=True)
class ApiLoad:
    """What is measured, and for how long."""

    rate: float
    """Requests per second in every other window."""
    window_seconds: float
    windows: int
    """Number of windows of each kind."""
    past_steps: int
    run_cores: tuple[int, ...] = ()
    """Cores that run and API may use; none: any."""
    client_cores: tuple[int, ...] = ()


@dataclass(frozen=True)
class ApiResult:
    """Latencies as seen by a client; the run trains all the time."""

    projected_per_second: float
    """Steps of the past run that became rows, per second."""
    status_per_second: float
    """Requests per second, as fast as the clients can ask."""
    status_p50_ms: float
    status_p99_ms: float
    past_status_p50_ms: float
    past_status_p99_ms: float
    past_steps_p50_ms: float
    """All steps, in 500 points, as a page that the API has cached."""
    past_steps_p99_ms: float
    made_steps_p50_ms: float
    """The same without the first step, another page each time, so that nothing is cached."""
    made_steps_p99_ms: float
    made_readings_p50_ms: float
    """All readings of the past run, in 250 points, made anew each time."""
    made_readings_p99_ms: float
    made_records_p50_ms: float
    """Checkpoints and choices of workers of the past run, 150 of each, made anew each time."""
    made_records_p99_ms: float
    paced_per_second: float
    """Requests per second in the windows with load."""
    paced_p50_ms: float
    paced_p99_ms: float
    """99th percentile of the slowest window."""
    paced_p99_median_ms: float
    api_ms: float
    """Processor time of the API per request."""
    client_ms: float
    """Processor time of the clients per request."""
    api_idle_share: float
    """Share of a core without requests."""
    steps_per_second_alone: float
    steps_per_second_loaded: float
    ratio: float
    """Median over pairs of windows: steps per second with load divided by those without."""


@dataclass(frozen=True)
class _Window:
    """A window of the run, and the processor time of the API's process in it."""

    began: float
    ended: float
    api_seconds: float
    load: Latencies | None
    """Latencies; None: nobody asked."""

    @property
    def api_share(self) -> float:
        return self.api_seconds / (self.ended - self.began)


def run_api_load(folder: Path, load: ApiLoad, settings: Sequence[str], tell: Callable[[str], None]) -> ApiResult:
    """Runs the whole measurement, in a separate folder."""
    place = folder / RUN
    place.mkdir(parents=True)
    overrides = f"stream.folder={place / 'log'}", *SETTINGS, *settings
    options = tuple(part for override in overrides for part in ("--set", override))
    job = ChaosJob(place, 0, 0.0, 0.0, 0.0, options, PATIENCE_SECONDS)
    tell(f"writing a past run of {load.past_steps:,} steps")
    projected, token = asyncio.run(_prepare(database_url(None, folder), load.past_steps))
    ahead = events_ahead(job, FIRST_EVENTS, tell)
    ahead.top_up()
    with ExitStack() as resources:
        pin(load.run_cores)
        run = resources.enter_context(running(job))
        asking = resources.enter_context(clients(load.client_cores))
        address = await_address(run)
        measurement = _Measurement(run, asking, address, listener(address), token, ahead, tell)
        return measurement.take(load, projected)


async def _prepare(database: str, steps: int) -> tuple[float, str]:
    """Fills the database; returns steps per second, and the secret of a token."""
    store = await SqlStore.open(database)
    try:
        scopes: tuple[Scope, ...] = ("read",)
        _, secret = await store.tokens.create("bench", scopes, None)
        return await fill(store, PAST, steps), secret
    finally:
        await store.close()


def await_address(run: SupervisedRun) -> str:
    """Where the API listens, once the run trains."""
    progress = Progress(run.job.folder)
    endpoint = run.job.folder / "endpoints" / "api"
    until = time.monotonic() + PATIENCE_SECONDS
    while not endpoint.exists() or (progress.read_newest() or (0, 0))[1] < SETTLED_STEPS:
        if time.monotonic() > until or run.process.poll() is not None:
            raise FreshetError(f"no run after {PATIENCE_SECONDS:g} s; expected one that trains; see {run.job.folder}")
        time.sleep(0.2)
    return endpoint.read_text().strip()


@dataclass(frozen=True)
class _Measurement:
    """A run that trains, and its clients."""

    run: SupervisedRun
    clients: Clients
    address: str
    api: psutil.Process
    token: str
    ahead: EventsAhead
    tell: Callable[[str], None]

    def take(self, load: ApiLoad, projected: float) -> ApiResult:
        self.tell("reading")
        status = self._read(f"/v1/runs/{RUN}", CLIENTS)
        past = self._read(f"/v1/runs/{PAST}")
        kept = self._read(f"/v1/runs/{PAST}/steps?points=500")
        made = self._read(f"/v1/runs/{PAST}/steps?points=500&first={NUMBER}")
        readings = self._read(f"/v1/runs/{PAST}/readings?points=250&first={NUMBER}")
        records = self._read(f"/v1/runs/{PAST}/journal?kind=set&kind=checkpoint&points=150&first={NUMBER}")
        pairs = []
        for number in range(load.windows):
            self.tell(f"windows {number + 1} of {load.windows}")
            pairs.append(self.ahead.measure(lambda: self._pair(load)))
        alone, loaded = zip(*pairs, strict=True)
        rates = steps_per_second(
            step_times(self.run.job.folder), [(each.began, each.ended) for each in (*alone, *loaded)]
        )
        without = rates[: load.windows]
        with_load = rates[load.windows :]
        return ApiResult(
            projected_per_second=projected,
            status_per_second=status.requests_per_second,
            status_p50_ms=status.p50_ms,
            status_p99_ms=status.p99_ms,
            past_status_p50_ms=past.p50_ms,
            past_status_p99_ms=past.p99_ms,
            past_steps_p50_ms=kept.p50_ms,
            past_steps_p99_ms=kept.p99_ms,
            made_steps_p50_ms=made.p50_ms,
            made_steps_p99_ms=made.p99_ms,
            made_readings_p50_ms=readings.p50_ms,
            made_readings_p99_ms=readings.p99_ms,
            made_records_p50_ms=records.p50_ms,
            made_records_p99_ms=records.p99_ms,
            **paced_figures(alone, loaded),
            steps_per_second_alone=statistics.median(without),
            steps_per_second_loaded=statistics.median(with_load),
            ratio=statistics.median(b / a for a, b in zip(without, with_load, strict=True)),
        )

    def _read(self, path: str, number: int = 1) -> Latencies:
        """Requests of so many clients, each as fast as it is answered."""
        return self.ahead.measure(lambda: self._ask(path, READS_SECONDS, 0, number))

    def _pair(self, load: ApiLoad) -> tuple[_Window, _Window]:
        """A window without requests, and one with them."""
        return self._window(load.window_seconds, 0.0), self._window(load.window_seconds, load.rate)

    def _window(self, seconds: float, rate: float) -> _Window:
        """``rate`` is in requests per second; 0: none."""
        began = time.time()
        spent = self._api_seconds()
        load = self._ask(f"/v1/runs/{RUN}", seconds, rate, CLIENTS) if rate else None
        time.sleep(max(0.0, began + seconds - time.time()))
        return _Window(began, time.time(), self._api_seconds() - spent, load)

    def _ask(self, path: str, seconds: float, rate: float, number: int) -> Latencies:
        return self.clients.ask(AskedRoute(self.address, path, self.token, seconds, rate, number)).result()

    def _api_seconds(self) -> float:
        times = self.api.cpu_times()
        return float(times.user + times.system)


def paced_figures(alone: Sequence[_Window], loaded: Sequence[_Window]) -> dict[str, float]:
    """Latencies of requests at a rate, and their cost."""
    answered = [each.load for each in loaded if each.load is not None]
    idle_share = statistics.median(each.api_share for each in alone)
    spent = sum(each.api_seconds - idle_share * (each.ended - each.began) for each in loaded)
    return {
        "paced_per_second": statistics.median(each.requests_per_second for each in answered),
        "paced_p50_ms": statistics.median(each.p50_ms for each in answered),
        "paced_p99_ms": max(each.p99_ms for each in answered),
        "paced_p99_median_ms": statistics.median(each.p99_ms for each in answered),
        "api_ms": 1000 * spent / sum(each.requests for each in answered),
        "client_ms": statistics.median(each.client_ms for each in answered),
        "api_idle_share": idle_share,
    }


def listener(address: str) -> psutil.Process:
    """The process that listens at an address."""
    port = urlsplit(address).port
    found = (each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN)
    number = next((each.pid for each in found if each.laddr and each.laddr.port == port), None)
    if number is None:
        raise FreshetError(f"nobody listens at {address}; expected the API; see its log")
    return psutil.Process(number)


def step_times(folder: Path) -> list[float]:
    """When each step was completed, by the journal."""
    done = (record for record in read_records(folder / JOURNAL) if isinstance(record, StepDone))
    return [record.figures.at_seconds for record in done if record.figures is not None]


def steps_per_second(times: Sequence[float], windows: Sequence[tuple[float, float]]) -> list[float]:
    """Steps per second of each window (from, to); raises FreshetError if one has no step."""
    rates = [sum(start <= at < stop for at in times) / (stop - start) for start, stop in windows]
    if not all(rates):
        raise FreshetError("a window has no step; expected the run to train all the time")
    return rates

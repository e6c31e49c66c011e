"""How old a click is when a model that has learnt from it first answers a client; and what this costs.

Freshness. ``freshet produce`` writes events at the given rate, ``freshet up`` trains and serves them, and a client
requests predictions all the time. Each answer names its snapshot, each record of the log says when it was appended, and
the journal says which step trained it. So the freshness of an event is known without the run's own figures: from its
append until the client first got an answer of a snapshot with its step. This includes the time between two requests.

Cost. Events are written beforehand and trained as fast as possible, by a run that does not serve itself. A serving
process next to it is stopped (SIGSTOP) and continued in turn: without a server, nothing is published. Steps per second
of neighbouring windows are compared. The serving process's own use of the cores is part of the cost. The number of
events that a window needs follows from the one before it; they are written between windows, and a pair of windows in
which they ran out is measured again.
"""

import asyncio
import http.client
import json
import signal
import statistics
import subprocess
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from benchmarks.control.ahead import PATIENCE_SECONDS, events_ahead
from benchmarks.control.api import step_times, steps_per_second
from dispatch.journal.history import JOURNAL
from dispatch.journal.log import read_records
from dispatch.journal.records import StepDecided
from infra.base.errors import FreshetError
from infra.chaos.main import ChaosJob, SupervisedRun, end, launch, running
from infra.chaos.progress import Progress
from infra.run.folder import as_path
from infra.web.store.access import make_token
from infra.web.store.place import database_url
from ingest.log.embedded import LogReader

SERVE = "serve"
"""Name of the serving process."""
TOPIC = "clicks"
SETTLED_STEPS = 30
QUIET_SECONDS = 12.0
"""Time until a dispatcher knows that nobody serves any more."""
RETURN_SECONDS = 4.0
"""Time until a continued serving process has caught up."""
TICK_SECONDS = 0.02
READ_BYTES = 16 << 20
SAMPLE = {"fields": {"user": "u1", "item": 1, "category": "c1", "device": "phone", "position": 1, "hour": 1}}
SETTINGS = (
    *(
        "dispatch.workers=2",
        "ps.shards=1",
        "stream.batch=512",
        "stream.first_batch=0",
        "rows.dim=16",
        f"stream.topic={TOPIC}",
    ),
    *("api.port=0", "serving.port=0", "checkpoints.kept=100000"),  # all, so that the journal stays whole
)
"""Settings of both runs, before those that are given."""


@dataclass(frozen=True)
class FreshnessLoad:
    """What is measured, and for how long."""

    rate: float
    """Events per second."""
    seconds: float
    window_seconds: float
    windows: int
    """Number of windows of each kind."""
    events: int
    """Events written beforehand for the first windows; the number for the others is then known."""


@dataclass(frozen=True)
class FreshnessResult:
    """Times of events are from their append to the first answer of a snapshot that has learnt from them."""

    events_per_second: float
    events: int
    p50_seconds: float
    p99_seconds: float
    worst_seconds: float
    snapshots: int
    """Snapshots that the client saw."""
    answers_per_second: float
    steps_per_second_published: tuple[float, ...]
    """Steps per second of each window."""
    steps_per_second_alone: tuple[float, ...]
    ratio: float
    """Ratio of the medians of both."""


@dataclass
class SeenSnapshots:
    """What a client saw, in the order of time."""

    times: list[float] = field(default_factory=list)
    """Times of answers, in seconds since 1970."""
    snapshots: list[tuple[int, int]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def run_freshness(
    folder: Path, load: FreshnessLoad, settings: Sequence[str], tell: Callable[[str], None]
) -> FreshnessResult:
    """Both parts, each a separate run."""
    asked, ages = _measure_ages(_job(folder / "fresh", load.rate, settings), load, tell)
    p50, p99, worst = np.quantile(ages, (0.5, 0.99, 1.0))
    tell(f"{len(ages):,} events: p50 {p50:.2f} s, p99 {p99:.2f} s")
    published, alone = _measure_cost(_job(folder / "cost", 0.0, settings), load, tell)
    return FreshnessResult(
        events_per_second=len(ages) / load.seconds,
        events=len(ages),
        p50_seconds=float(p50),
        p99_seconds=float(p99),
        worst_seconds=float(worst),
        snapshots=len(set(asked.snapshots)),
        answers_per_second=len(asked.times) / (asked.times[-1] - asked.times[0]),
        steps_per_second_published=tuple(published),
        steps_per_second_alone=tuple(alone),
        ratio=statistics.median(published) / statistics.median(alone),
    )


def _job(place: Path, rate: float, settings: Sequence[str]) -> ChaosJob:
    place.mkdir(parents=True)
    overrides = f"stream.folder={place / 'log'}", *SETTINGS, *settings
    options = tuple(part for override in overrides for part in ("--set", override))
    return ChaosJob(place, 0, 0.0, 0.0, rate, options, PATIENCE_SECONDS, serves=True)


# ── freshness ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def _measure_ages(job: ChaosJob, load: FreshnessLoad, tell: Callable[[str], None]) -> tuple[SeenSnapshots, list[float]]:
    token = asyncio.run(make_token(database_url(None, job.folder.parent), "bench", ("predict", "read")))
    producing = launch(job, "produce", "--rate", str(load.rate))
    try:
        with running(job) as run:
            address = _await_serving(run)
            tell(f"asking for {load.seconds:g} s")
            with asking(address, token) as asked:
                time.sleep(load.seconds + RETURN_SECONDS)
            check_answers(asked)
    finally:
        end(producing, PATIENCE_SECONDS)
    since = asked.times[0]
    until = asked.times[0] + load.seconds
    appended = [(at, step) for at, step in _trained(job.folder) if since <= at < until]
    if not appended:
        raise FreshetError(f"no event was trained in {load.seconds:g} s; expected some; see {job.folder}")
    return asked, ages_of(appended, asked)


@contextmanager
def asking(address: str, token: str) -> Iterator[SeenSnapshots]:
    """A client that asks as often as it can, with a short pause between an answer and the next request."""
    asked = SeenSnapshots()
    is_over = threading.Event()
    thread = threading.Thread(target=_ask, args=(address, token, asked, is_over))
    thread.start()
    try:
        yield asked
    finally:
        is_over.set()
        thread.join()


def _ask(address: str, token: str, asked: SeenSnapshots, is_over: threading.Event) -> None:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=PATIENCE_SECONDS)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    body = json.dumps([SAMPLE])
    try:
        while not asked.faults and not is_over.wait(TICK_SECONDS):
            connection.request("POST", "/v1/predict", body, headers)
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != http.client.OK:
                asked.faults.append(f"{answer.status} {content[:200]!r}")
                return
            snapshot = json.loads(content)["snapshot"]
            asked.times.append(time.time())
            asked.snapshots.append((snapshot["timeline"], snapshot["step"]))
    except (OSError, http.client.HTTPException) as error:
        asked.faults.append(repr(error))
    finally:
        connection.close()


def check_answers(asked: SeenSnapshots) -> None:
    if asked.faults or len(asked.times) < 2:
        raise FreshetError(f"/v1/predict answered {asked.faults[:1] or 'nothing'}; expected 200; see the log of serve")
    if asked.snapshots != sorted(asked.snapshots):
        raise FreshetError("the served snapshot went backwards; expected later ones only; see the log of serve")


def ages_of(appended: Sequence[tuple[float, int]], asked: SeenSnapshots) -> list[float]:
    """Ages of events (append time, step that trained them); raises FreshetError if one was never served."""
    steps = [step for _, step in asked.snapshots]
    ages = []
    for at, step in appended:
        first = bisect_left(steps, step)
        if first == len(steps):
            raise FreshetError(f"step {step} was not served in the end; expected it; see the log of serve")
        ages.append(asked.times[first] - at)
    return ages


def _trained(folder: Path) -> Iterator[tuple[float, int]]:
    """Append time and step of every trained record; one record is one event here."""
    reader = LogReader(folder / "log", TOPIC)
    ends = step_ends(folder)
    try:
        for partition, places in ends.items():
            offsets = [end for end, _ in places]
            offset = 0
            while offset < offsets[-1] and (records := reader.read(partition, offset, READ_BYTES)):
                for record in records:
                    place = bisect_left(offsets, record.offset + 1)
                    if place < len(places):
                        yield record.time_ms / 1000, places[place][1]
                offset = records[-1].offset + 1
    finally:
        reader.close()


def step_ends(folder: Path) -> Mapping[int, list[tuple[int, int]]]:
    """Per partition, (offset after its last record, step), ascending."""
    ends: dict[int, list[tuple[int, int]]] = {}
    for record in read_records(folder / JOURNAL):
        if isinstance(record, StepDecided):
            for part in record.manifest.ranges:
                ends.setdefault(part.partition, []).append((part.end.offset, record.step))
    return ends


# ── cost ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
Window = tuple[float, float]
"""From and to, in seconds since 1970."""


def _measure_cost(job: ChaosJob, load: FreshnessLoad, tell: Callable[[str], None]) -> tuple[list[float], list[float]]:
    ahead = events_ahead(job, load.events, tell)
    ahead.top_up()
    with running(replace(job, serves=False)) as run:
        _await_steps(run)
        serving = launch(replace(job, settings=()), "serve", "--run", as_path(job.folder))
        try:
            _await_serving(run)
            time.sleep(RETURN_SECONDS)
            pairs = []
            for number in range(load.windows):
                tell(f"windows {number + 1} of {load.windows}")
                pairs.append(ahead.measure(lambda: _pair(serving, load.window_seconds)))
        finally:
            end(serving, PATIENCE_SECONDS)
    published, alone = zip(*pairs, strict=True)
    rates = steps_per_second(step_times(job.folder), [*published, *alone])
    return rates[: load.windows], rates[load.windows :]


def _pair(serving: "subprocess.Popen[bytes]", seconds: float) -> tuple[Window, Window]:
    """A window with publishing, and one without."""
    published = _window(seconds)
    serving.send_signal(signal.SIGSTOP)
    time.sleep(QUIET_SECONDS)
    alone = _window(seconds)
    serving.send_signal(signal.SIGCONT)
    time.sleep(RETURN_SECONDS)
    return published, alone


def _window(seconds: float) -> Window:
    began = time.time()
    time.sleep(seconds)
    return began, time.time()


def _await_serving(run: SupervisedRun) -> str:
    """Where predictions are served, once the run trains."""
    _await_steps(run)
    endpoint = run.job.folder / "endpoints" / SERVE
    _await(run, endpoint.exists)
    return endpoint.read_text().strip()


def _await_steps(run: SupervisedRun) -> None:
    progress = Progress(run.job.folder)
    _await(run, lambda: (progress.read_newest() or (0, 0))[1] >= SETTLED_STEPS)


def _await(run: SupervisedRun, is_there: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not is_there():
        if time.monotonic() > until or run.process.poll() is not None:
            raise FreshetError(f"no run after {PATIENCE_SECONDS:g} s; expected one that serves; see {run.job.folder}")
        time.sleep(0.2)

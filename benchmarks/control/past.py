"""A past run in a database: any number of steps, with readings and marks, written by the same code as live runs."""

import math
import time
from collections.abc import Iterator

from api.runs.recent import RecentReadings, RunReading, WorkerMoment
from api.store.store import SqlStore
from dispatch.feed.page import FeedPage, PlacedRecord
from dispatch.journal.records import (
    AlphaChanged,
    AnyRecord,
    Begun,
    CheckpointTaken,
    Commanded,
    Faulted,
    GenerationStarted,
    SetChosen,
    StepDecided,
    StepDone,
    StepFigures,
    Stopped,
)
from ingest.batches.manifest import Manifest

PAGE = 5000
"""Steps of a page."""
STEP_SECONDS = 0.25
SAMPLES = 512
"""Samples of a step."""
WORKERS = ("worker-0", "worker-1", "worker-2", "worker-3")
CHECKPOINT_STEPS, SET_STEPS, ALPHA_STEPS, COMMAND_STEPS, FAULT_STEPS = 40, 240, 7200, 14_400, 28_800
"""Steps from one mark to the next: 10 s, a minute, half an hour, an hour, two hours."""
FLUSH_SECONDS = 3600
KINDS = ("pulled rows", "pushed rows", "reduced rows", "dense up", "dense down", "orders")


async def fill(store: SqlStore, run: str, steps: int, ends_at: float | None = None) -> float:
    """Writes a run of that many steps that ends now, or then; returns steps projected per second."""
    begins_at = (time.time() if ends_at is None else ends_at) - steps * STEP_SECONDS
    await store.runs.see(run, "", {}, "")
    began = time.perf_counter()
    for first in range(1, steps + 1, PAGE):
        await store.runs.project(run, steps_page(run, first, min(steps, first + PAGE - 1), begins_at))
    rate = steps / (time.perf_counter() - began)
    end = 2 * steps + 1
    stopped = Stopped("the end of a past run", steps, 0, "", begins_at + steps * STEP_SECONDS)
    await store.runs.project(run, FeedPage(end, end + 1, end + 1, (PlacedRecord(end + 1, stopped),)))
    await _fill_readings(store, run, int(steps * STEP_SECONDS), begins_at)
    return rate


def steps_page(run: str, first: int, last: int, begins_at: float = 0.0) -> FeedPage:
    """A page with these steps, each decided in one frame and trained in the next, with the marks that follow it."""
    start = (
        PlacedRecord(1, Begun(run, "log:clicks", {}, {}, "", ("cpu",), at_seconds=begins_at, code="0")),
        PlacedRecord(1, GenerationStarted(1, WORKERS, False, 0, None, "start", begins_at)),
    )
    records = tuple(
        placed
        for step in range(first, last + 1)
        for placed in (
            PlacedRecord(2 * step, _decided(run, step)),
            *(PlacedRecord(2 * step + 1, record) for record in _trained(step, begins_at + STEP_SECONDS * step)),
        )
    )
    is_first = first == 1
    return FeedPage(2 * first - 1 - is_first, 2 * last + 1, 2 * last + 1, (*start, *records) if is_first else records)


def _decided(run: str, step: int) -> StepDecided:
    return StepDecided(Manifest(run, 0, step, (), SAMPLES, 0), b"", 0.5, 1)


def _trained(step: int, at: float) -> Iterator[AnyRecord]:
    loss = SAMPLES * (0.45 + 0.1 * math.exp(-step / 20_000) + 0.01 * math.sin(step / 900))
    yield StepDone(step, 7, StepFigures(at, STEP_SECONDS, 0.01, SAMPLES, 100, loss, 1_000_000))
    if step % CHECKPOINT_STEPS == 0:
        yield CheckpointTaken(step // CHECKPOINT_STEPS, step, {}, SAMPLES * step, at)
    if step % SET_STEPS == 0:
        count = 1 + step // SET_STEPS % len(WORKERS)
        yield SetChosen(step, WORKERS[:count], "was faster when measured", 0.05, 0.06, at)
    if step % ALPHA_STEPS == 0:
        alpha = step // ALPHA_STEPS % 5 / 4
        yield AlphaChanged(step, alpha, "cpu", "decisions were late", {"wait_share": 0.1}, at)
    if step % COMMAND_STEPS == 0:
        yield Commanded(f"past-{step}", "pause", "", step, "the run is paused", actor="bench", at_seconds=at)
    if step % FAULT_STEPS == 0:
        yield Faulted(step, 1, "WorkerLost", "worker-3 was lost", at)


async def _fill_readings(store: SqlStore, run: str, seconds: int, begins_at: float) -> None:
    """Adds a reading for every second, as the API does while it follows a run."""
    recent = RecentReadings()
    for second in range(1, seconds + 1):
        recent.add(_reading(second, begins_at + second))
        if second % FLUSH_SECONDS == 0 or second == seconds:
            await store.runs.add_readings(run, recent.unstored)
            recent.unstored.clear()


def _reading(second: int, at: float) -> RunReading:
    step = int(second / STEP_SECONDS)
    moved = dict.fromkeys(KINDS, 100000 * second)
    wave = math.sin(second / 3000)
    return RunReading(
        at=at,
        state="training",
        step=step,
        samples=SAMPLES * step,
        samples_per_second=SAMPLES / STEP_SECONDS * (1 + 0.2 * wave),
        step_ms=1000 * STEP_SECONDS,
        decide_ms=10.0,
        logloss=0.45 + 0.01 * wave,
        auc=0.74 - 0.01 * wave,
        alpha=step // ALPHA_STEPS % 5 / 4,
        contention={"wait_share": 0.1, "pressure": 0.2 + 0.1 * wave},
        lag=int(2000 * (1 + wave)),
        dead_letters=second // 600,
        freshness_p50=3.0 + wave,
        freshness_p99=6.0 + wave,
        served_step=step,
        workers={
            name: WorkerMoment(
                state="training", samples=128 * step, lookups=1000 * step, hits=int(600 * step), bytes=moved
            )
            for name in WORKERS
        },
        memory=dict.fromkeys(("dispatcher", "api", "ps-0", *WORKERS), 400000000 + 10000 * (second % 900)),
    )

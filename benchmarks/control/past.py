"""A past run in a database: any number of steps, through the same projection as live runs."""

import time

from api.store.store import SqlStore
from dispatch.feed.page import FeedPage, PlacedRecord
from dispatch.journal.records import StepDecided, StepDone, StepFigures
from ingest.batches.manifest import Manifest

PAGE = 5000
"""Steps of a page."""
STEP_SECONDS = 0.25
SAMPLES = 512
"""Samples of a step."""


async def fill(store: SqlStore, run: str, steps: int) -> float:
    """Projects that many steps; returns steps per second."""
    await store.runs.see(run, "", {}, "")
    began = time.perf_counter()
    for first in range(1, steps + 1, PAGE):
        await store.runs.project(run, steps_page(run, first, min(steps, first + PAGE - 1)))
    return steps / (time.perf_counter() - began)


def steps_page(run: str, first: int, last: int) -> FeedPage:
    """A page with these steps, each decided in one frame and trained in the next."""
    steps = range(first, last + 1)
    records = [
        each for k in steps for each in (PlacedRecord(2 * k, _decided(run, k)), PlacedRecord(2 * k + 1, _done(k)))
    ]
    return FeedPage(2 * first - 1, 2 * last + 1, 2 * last + 1, tuple(records))


def _decided(run: str, step: int) -> StepDecided:
    return StepDecided(Manifest(run, 0, step, (), SAMPLES, 0), b"", 0.5, 1)


def _done(step: int) -> StepDone:
    return StepDone(step, 7, StepFigures(STEP_SECONDS * step, STEP_SECONDS, 0.01, SAMPLES, 100, 250.0, 1_000_000))

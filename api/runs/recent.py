"""The past of a run as its statuses showed it: one reading a second, thinned out with age.

Steps, checkpoints, faults and commands come from the journal. What only a status shows (quality, lag, freshness,
traffic by kind, memory) is kept here, so that charts do not begin empty. The latest quarter of an hour is in memory;
fewer readings, of a longer time, are in the database.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from time import time
from typing import NamedTuple

import msgspec
import psutil

from api.store.readings import STORED_LEVELS
from api.store.rows import StoredReading
from dispatch.progress.status import Status, WorkerStatus

MOST_KEPT = 900
"""Readings in memory, one a second."""
MOST_UNSTORED = 2000
"""Readings that wait for a database that is away; more than three hours of them."""
CONTENTION = ("wait_share", "pressure", "cpu_slowdown", "gpu_others")
"""Readings of the controller of alpha that are kept; all of them are in the records of its changes."""


class WorkerMoment(msgspec.Struct, frozen=True, kw_only=True):
    """One worker at one moment; traffic since the start of the run."""

    state: str
    """training, parked or left."""
    samples: int
    lookups: int
    hits: int
    bytes: dict[str, int]
    """Bytes over its link, by kind."""


class RunReading(msgspec.Struct, frozen=True, kw_only=True):
    """A run at one moment."""

    at: float
    """In seconds since 1970."""
    state: str
    step: int
    samples: int
    samples_per_second: float
    step_ms: float
    decide_ms: float
    logloss: float | None
    auc: float | None
    alpha: float | None
    contention: dict[str, float]
    """What alpha depends on, if it follows contention: the names that are known of ``CONTENTION``."""
    lag: int
    dead_letters: int
    freshness_p50: float | None
    freshness_p99: float | None
    served_step: int | None
    workers: dict[str, WorkerMoment]
    memory: dict[str, int]
    """Resident bytes, by process; empty if the supervisor is elsewhere."""


def reading_of(status: Status, memory: Mapping[str, int]) -> RunReading:
    """What is kept of a status."""
    return RunReading(
        at=time(),
        state=status.state,
        step=status.step,
        samples=status.samples,
        samples_per_second=status.samples_per_second if status.idle_seconds < 2 else 0.0,
        step_ms=status.step_ms,
        decide_ms=status.decisions.mean_ms,
        logloss=status.recent_quality.logloss,
        auc=status.recent_quality.auc,
        alpha=status.alpha,
        contention={name: status.alpha_readings[name] for name in CONTENTION if name in status.alpha_readings},
        lag=status.events.lag,
        dead_letters=status.events.dead_letters,
        freshness_p50=status.served.freshness.p50_seconds,
        freshness_p99=status.served.freshness.p99_seconds,
        served_step=status.served.step,
        workers={worker.name: _moment(worker) for worker in status.workers},
        memory=dict(memory),
    )


def _moment(worker: WorkerStatus) -> WorkerMoment:
    traffic = worker.traffic
    return WorkerMoment(
        state="left" if worker.has_left else "parked" if worker.is_parked else "training",
        samples=traffic.samples,
        lookups=traffic.lookups,
        hits=traffic.hits,
        bytes={
            "pulled rows": traffic.pulled_bytes,
            "pushed rows": traffic.pushed_bytes,
            "reduced rows": traffic.reduced_bytes,
            "dense up": traffic.dense_up_bytes,
            "dense down": traffic.dense_down_bytes,
            "orders": traffic.order_bytes + traffic.report_bytes,
        },
    )


def resident_bytes(processes: Mapping[str, int]) -> dict[str, int]:
    """Resident memory by process, given their ids; processes that have ended are left out."""
    found = {}
    for name, pid in processes.items():
        try:
            found[name] = int(psutil.Process(pid).memory_info().rss)
        except psutil.Error:
            continue
    return found


class KeptReading(NamedTuple):
    """A reading as it is kept."""

    at: float
    encoded: bytes


class RecentReadings:
    """The newest readings of one run, encoded, and those that the database does not have yet."""

    def __init__(self) -> None:
        self._kept = deque[KeptReading](maxlen=MOST_KEPT)
        self._buckets = dict.fromkeys(STORED_LEVELS, -1)
        """By level: the last bucket with a reading to be stored; the first reading of a bucket is."""
        self._journal = ""
        self.unstored = deque[StoredReading](maxlen=MOST_UNSTORED)

    @property
    def begins_at(self) -> float:
        """Time of the oldest reading in memory; infinite if there is none."""
        return self._kept[0].at if self._kept else math.inf

    def belong_to(self, journal: str) -> None:
        """Forgets everything if the journal, by its identity, is another one: a new run has the name of the old one."""
        if journal and self._journal and journal != self._journal:
            self._kept.clear()
            self.unstored.clear()
            self._buckets = dict.fromkeys(STORED_LEVELS, -1)
        self._journal = journal or self._journal

    def add(self, reading: RunReading) -> None:
        encoded = msgspec.json.encode(reading)
        self._kept.append(KeptReading(reading.at, encoded))
        for level, bucket in self._buckets.items():
            if reading.at // level > bucket:
                self._buckets[level] = int(reading.at // level)
                self.unstored.append(StoredReading(level, reading.at, encoded.decode()))

    def between(self, first: float, last: float) -> list[KeptReading]:
        """The readings in memory after first, up to last, oldest first."""
        return [each for each in self._kept if first < each.at <= last]


def thinned(found: Sequence[KeptReading], points: int) -> list[msgspec.Raw]:
    """About as many of these readings, evenly in time; always with the newest."""
    if not found:
        return []
    seconds = max((found[-1].at - found[0].at) / points, 1e-3)
    newest = {int((found[-1].at - each.at) / seconds): each.encoded for each in found}
    return [msgspec.Raw(newest[place]) for place in sorted(newest, reverse=True)]

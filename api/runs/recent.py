"""The past of a run as its statuses showed it: one reading a second, thinned out with age.

Steps, checkpoints, faults and commands come from the journal. What only a status shows (quality, lag, freshness,
traffic by kind, memory) is kept here, so that charts do not begin empty. All of it is in memory; the coarser levels are
in the database, too, from which a process that was restarted reads them once.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from time import time

import msgspec
import psutil

from api.store.rows import StoredReading
from dispatch.progress.status import Status, WorkerStatus

LEVELS = ((1, 900), (10, 1080), (120, 21_600))
"""Seconds between two readings, and how many are kept: a quarter of an hour, three hours, thirty days."""
STORED_LEVELS = (10, 120)
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


class RecentReadings:
    """The readings of one run, encoded, at every level."""

    def __init__(self) -> None:
        self._levels = {seconds: deque[tuple[float, bytes]](maxlen=most) for seconds, most in LEVELS}
        self.is_restored = False
        """Whether the readings of the database are here."""

    def add(self, reading: RunReading) -> list[StoredReading]:
        """Adds a reading to each level whose last one is old enough; returns what is to be stored."""
        encoded = msgspec.json.encode(reading)
        stored = []
        for seconds, kept in self._levels.items():
            if not kept or reading.at - kept[-1][0] >= 0.9 * seconds:
                kept.append((reading.at, encoded))
                if seconds in STORED_LEVELS:
                    stored.append(StoredReading(seconds, reading.at, encoded.decode()))
        return stored

    def restore(self, stored: Sequence[StoredReading]) -> None:
        """Puts readings of the database before those that are here."""
        for seconds in STORED_LEVELS:
            kept = self._levels[seconds]
            first = kept[0][0] if kept else math.inf
            older = [(each.at, each.body.encode()) for each in stored if each.level == seconds and each.at < first]
            self._levels[seconds] = deque([*older, *kept], maxlen=kept.maxlen)
        self.is_restored = True

    def between(self, first: float, last: float, points: int) -> list[msgspec.Raw]:
        """The readings in a window, oldest first, in about as many points; always with the newest of the window.

        Each part of the window comes from the finest level that goes back so far.
        """
        found: list[tuple[float, bytes]] = []
        until = math.inf
        for kept in self._levels.values():
            found[:0] = [(at, encoded) for at, encoded in kept if first < at <= last and at < until]
            until = min(until, kept[0][0] if kept else math.inf)
        if not found:
            return []
        seconds = max((found[-1][0] - found[0][0]) / points, 1e-3)
        newest = {int((found[-1][0] - at) / seconds): encoded for at, encoded in found}
        return [msgspec.Raw(newest[place]) for place in sorted(newest, reverse=True)]

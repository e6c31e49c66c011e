"""How fresh the served model is: for every event, the time from its arrival in the log to the first answer it affected.

Arrival times of steps that no server serves yet are kept, at most MOST_TIMES of them; beyond that, those of older steps
are forgotten and counted. Freshness is counted in buckets that grow with the value, each less than 1/32 of it wide, so
the memory is fixed and a percentile is off by at most 3 %. Two windows alternate: percentiles are those of the latest
half to whole minute.

Clocks: arrival is the time in the log (in Kafka, as its topic is configured: the producer's CreateTime, or the broker's
LogAppendTime), and the first answer is timed by the server, so clocks of different machines must agree. Event times are
those of devices: events dated in the future are counted, and excluded from the age.
"""

from collections import deque
from collections.abc import Callable
from time import monotonic, time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatch.progress.status import FreshnessStatus

UNIT_MS = 4
"""Milliseconds to which arrival times are rounded down."""
MOST_TIMES = 1 << 17
"""Most distinct arrival times that are kept."""
AHEAD_SECONDS = 10.0
"""An event that is dated this much later than now has a wrong clock."""
WINDOW_SECONDS = 30.0
SUB_BITS = 5
"""Each power of two is divided into 2^SUB_BITS buckets."""
OCTAVES = 40
"""Powers of two: up to 2^40 ms, about 35 years."""


def bucket_of(ms_T: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bucket of each value: exact below 2^SUB_BITS, from there on by the highest bits."""
    value_T = np.clip(ms_T, 0, (1 << OCTAVES) - 1)
    bits_T = np.frexp(value_T.astype(np.float64))[1].astype(np.int64)
    shift_T = np.maximum(bits_T - 1 - SUB_BITS, 0)
    found_T: NDArray[np.int64] = (shift_T << SUB_BITS) + (value_T >> shift_T)
    return found_T


def middle_of(bucket: int) -> float:
    """Milliseconds in the middle of a bucket."""
    shift = max(0, (bucket >> SUB_BITS) - 1)
    return float(((bucket - (shift << SUB_BITS)) << shift) + ((1 << shift) - 1) / 2)


BUCKETS = int(bucket_of(np.array([(1 << OCTAVES) - 1]))[0]) + 1


class Delays:
    """Counts of delays, by bucket."""

    def __init__(self) -> None:
        self.counts = np.zeros(BUCKETS, np.int64)

    def add(self, ms_T: NDArray[np.int64], counts_T: NDArray[np.int64]) -> None:
        np.add.at(self.counts, bucket_of(ms_T), counts_T)


def percentile_seconds(counts: NDArray[np.int64], share: float) -> float | None:
    """The value that this share of all delays does not exceed; None if there is none."""
    total = int(counts.sum())
    if not total:
        return None
    return middle_of(int(np.searchsorted(np.cumsum(counts), share * total))) / 1000


def newest_event_time(times_B: NDArray[np.float64]) -> tuple[float, int]:
    """The newest event time that is not in the future, in seconds since 1970; and the number of events in the future.

    A clock that is a little fast counts as right: such an event is of now. 0: all of them are in the future.
    """
    now = time()
    newest = float(times_B.max(initial=0.0))
    if newest <= now + AHEAD_SECONDS:
        return min(now, newest), 0
    dated_B = times_B[times_B <= now + AHEAD_SECONDS]
    return min(now, float(dated_B.max(initial=0.0))), times_B.size - dated_B.size


class PendingStep(NamedTuple):
    """Arrivals of one step that nobody serves yet."""

    step: int
    times_T: NDArray[np.int64]
    """Distinct arrival times, in units."""
    counts_T: NDArray[np.int64]
    newest_event_seconds: float
    """Newest event time; 0: all of them are in the future."""
    ahead: int
    """Events dated in the future."""


class Freshness:
    """Tracks events from their arrival until they are served."""

    def __init__(self, clock: Callable[[], str] = lambda: "") -> None:
        """clock: whose arrival times these are."""
        self._clock = clock
        self._pending: deque[PendingStep] = deque()
        self._times = 0
        """Arrival times kept in all pending steps."""
        self._live_step = 0
        """The highest step that has been served."""
        self._event_seconds = 0.0
        """Event time of the newest sample up to it."""
        self._windows = Delays(), Delays()
        """The current window, and the one before."""
        self._turned = monotonic()
        self.measured = self.forgotten = self.ahead = 0
        """Numbers of events."""

    def add(self, step: int, arrived_B: NDArray[np.int64], times_B: NDArray[np.float64]) -> None:
        """Adds the samples of the next step; those with an unknown arrival are ignored, as is a step served before."""
        while self._pending and self._pending[-1].step >= step:  # it is trained again
            self._drop(self._pending.pop())
        known_B = arrived_B[arrived_B > 0]
        if step <= self._live_step or not known_B.size:
            return
        times_T, counts_T = np.unique(known_B // UNIT_MS, return_counts=True)
        newest, ahead = newest_event_time(times_B)
        self._pending.append(PendingStep(step, times_T, counts_T.astype(np.int64), newest, ahead))
        self._times += times_T.size
        while self._times > MOST_TIMES:
            self.forgotten += self._drop(self._pending.popleft())

    def live(self, step: int, at_seconds: float) -> None:
        """Notes that a server serves the model after a step, since that time."""
        if step <= self._live_step:
            return
        self._live_step = step
        self._turn()
        while self._pending and self._pending[0].step <= step:
            served = self._pending.popleft()
            self.measured += self._drop(served)
            self.ahead += served.ahead
            self._event_seconds = max(self._event_seconds, served.newest_event_seconds)
            self._windows[0].add(round(1000 * at_seconds) - served.times_T * UNIT_MS, served.counts_T)

    def status(self) -> FreshnessStatus:
        self._turn()
        counts = self._windows[0].counts + self._windows[1].counts
        return FreshnessStatus(
            p50_seconds=percentile_seconds(counts, 0.5),
            p99_seconds=percentile_seconds(counts, 0.99),
            age_seconds=max(0.0, time() - self._event_seconds) if self._event_seconds else None,
            events=self.measured,
            forgotten=self.forgotten,
            ahead=self.ahead,
            clock=self._clock() or None,
        )

    def _drop(self, step: PendingStep) -> int:
        """Forgets a step that has left the queue; returns its events."""
        self._times -= step.times_T.size
        return int(step.counts_T.sum())

    def _turn(self) -> None:
        """Begins a new window if the current one is over; both are empty after a long time."""
        over = monotonic() - self._turned
        if over >= WINDOW_SECONDS:
            before = self._windows[0] if over < 2 * WINDOW_SECONDS else Delays()
            self._windows = (Delays(), before)
            self._turned = monotonic()

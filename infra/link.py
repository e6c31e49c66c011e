"""Link shaping: makes one machine's transfers take the time they would take over a slower link.

A worker's link has one token bucket in each direction. A transfer takes its bytes out of the bucket and, if that leaves
a debt, sleeps until the link would have carried them. Oversleep is credited to the next transfer, so many transfers
together take the configured time however coarse the sleeps are.
"""

import threading
import time
from collections.abc import Callable

from infra.errors import ConfigError

BURST_BYTES = 16 * 1024
"""bytes that may pass at once after the link was idle"""

LONGEST_CREDIT_SECONDS = 0.1
"""the most that oversleep earns: longer means that the process was suspended, and a real link would not catch up"""


class Bucket:
    """One direction of a link. Safe to use from several threads: their transfers queue up behind each other."""

    def __init__(
        self,
        bytes_per_second: float,
        burst_bytes: int = BURST_BYTES,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = bytes_per_second
        self._burst = burst_bytes / bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._credit_seconds = self._burst
        self._seen = clock()
        self._turn = threading.Lock()

    def take(self, nbytes: int) -> None:
        """Returns when the link would have carried these bytes."""
        with self._turn:
            start = self._clock()
            refilled = min(self._burst, self._credit_seconds + start - self._seen)
            credit = max(self._credit_seconds, refilled) - nbytes / self._rate
            if credit < 0:
                self._sleep(-credit)
                overslept = self._clock() - start + credit
                credit = min(overslept, LONGEST_CREDIT_SECONDS)
            self._credit_seconds = credit
            self._seen = self._clock()


class Link:
    """One worker's link. Without a speed, or where the network itself has that speed, it is not shaped."""

    def __init__(
        self,
        gbit_per_second: float | None = None,
        burst_bytes: int = BURST_BYTES,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        is_shaped: bool = True,
    ) -> None:
        self.gbit_per_second = gbit_per_second
        self._up: Bucket | None = None
        self._down: Bucket | None = None
        rate = None if gbit_per_second is None else _bytes_per_second(gbit_per_second)
        if rate is not None and is_shaped:
            self._up = Bucket(rate, burst_bytes, clock, sleep)
            self._down = Bucket(rate, burst_bytes, clock, sleep)

    def up(self, nbytes: int) -> None:
        """Blocks until the link has carried that many bytes away from the worker."""
        if self._up is not None:
            self._up.take(nbytes)

    def down(self, nbytes: int) -> None:
        """Blocks until the link has carried that many bytes to the worker."""
        if self._down is not None:
            self._down.take(nbytes)


def _bytes_per_second(gbit_per_second: float) -> float:
    if not 0 < gbit_per_second < float("inf"):
        raise ConfigError(
            f"a link cannot have {gbit_per_second} Gbit/s; expected a number above 0; "
            "correct it, or leave it out for a link that is not shaped"
        )
    return gbit_per_second * 1e9 / 8

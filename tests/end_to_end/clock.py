"""Time that passes in shaped links and nowhere else, so that what a run measures does not depend on the machine."""

import sys
import threading

import pytest

from infra.link import Bucket

TICK_SECONDS = 1e-6
"""what passes when somebody looks at the clock: nothing takes no time at all"""


class ThreadClock:
    """A clock for each thread: workers and shards that share a machine do not wait for each other's turn."""

    def __init__(self) -> None:
        self._times = threading.local()

    def now(self) -> float:
        return self.advance(TICK_SECONDS)

    def advance(self, seconds: float) -> float:
        self._times.now = getattr(self._times, "now", 0.0) + seconds
        return float(self._times.now)

    def replace_clocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Transfers over shaped links take their time on this clock, by which workers and shards measure them."""
        monkeypatch.setattr(Bucket, "take", lambda bucket, nbytes: self.advance(nbytes / bucket._rate))
        monkeypatch.setattr("time.perf_counter", self.now)
        for name, module in list(sys.modules.items()):
            if name.startswith(("ps.", "trainer.")) and hasattr(module, "perf_counter"):
                monkeypatch.setattr(module, "perf_counter", self.now)

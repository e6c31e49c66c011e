"""How long the deciding thread waited for a processor although it was ready to run, by the kernel's own count."""

from pathlib import Path

THREAD = Path("/proc/thread-self/schedstat")
"""Nanoseconds on a processor, nanoseconds ready and waiting for one, time slices; of the thread that reads it."""
LEAST_NANOSECONDS = 1_000_000
"""If a thread wanted less than this since the last reading, there is no value."""


class RunQueue:
    """Observes the thread that calls ``read``, which must always be the same one."""

    def __init__(self, source: Path = THREAD) -> None:
        self._source = source
        self._before: tuple[int, int] | None = None

    def read(self) -> float | None:
        """Share of the time since the last reading in which the thread wanted a processor but had none."""
        found = self._read()
        before, self._before = self._before, found
        if found is None or before is None:
            return None
        ran = found[0] - before[0]
        waited = found[1] - before[1]
        return waited / (ran + waited) if ran + waited >= LEAST_NANOSECONDS else None

    def _read(self) -> tuple[int, int] | None:
        try:
            ran, waited = self._source.read_text().split()[:2]
            return int(ran), int(waited)
        except (OSError, ValueError):
            return None

"""Memory and open files of every process of a run, sampled over time."""

from contextlib import suppress

import msgspec
import psutil

SETTLED_SAMPLES = 10
"""Samples of a process before its use counts as first or last: until then it still loads libraries."""


class Usage(msgspec.Struct, frozen=True):
    """What a process uses at one time."""

    rss_bytes: int
    descriptors: int


class Measured(msgspec.Struct, frozen=True):
    """What a process of the run used, over all its starts."""

    name: str
    starts: int
    first: Usage
    """Use when it had run for a while for the first time."""
    last: Usage
    """The newest use of a process that had run for a while."""
    most: Usage


class Census:
    """Accumulates samples."""

    def __init__(self) -> None:
        self._pids: dict[str, dict[int, int]] = {}
        """Samples of every start, by name and process id."""
        self._first: dict[str, Usage] = {}
        self._last: dict[str, Usage] = {}
        self._most: dict[str, Usage] = {}
        self._settled: set[str] = set()
        """Names whose first use is final."""

    def sample(self, processes: dict[str, psutil.Process]) -> None:
        """Takes one sample of each; those that have just ended are skipped."""
        for name, process in processes.items():
            with suppress(psutil.Error):
                self.add(name, process.pid, Usage(process.memory_info().rss, process.num_fds()))

    def add(self, name: str, pid: int, usage: Usage) -> None:
        samples = self._pids.setdefault(name, {})
        samples[pid] = samples.get(pid, 0) + 1
        most = self._most.get(name, usage)
        self._most[name] = Usage(max(most.rss_bytes, usage.rss_bytes), max(most.descriptors, usage.descriptors))
        is_settled = samples[pid] >= SETTLED_SAMPLES
        if is_settled or name not in self._settled:
            self._last[name] = usage
        if name not in self._first or (is_settled and name not in self._settled):
            self._first[name] = usage
        if is_settled:
            self._settled.add(name)

    def measured(self) -> list[Measured]:
        """The results by name."""
        return [
            Measured(name, len(pids), self._first[name], self._last[name], self._most[name])
            for name, pids in sorted(self._pids.items())
        ]

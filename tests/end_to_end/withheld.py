"""Streams that pause until something has happened, so that no run is over before a test has done what it is about."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dispatch.journal.history import read_history
from ingest.errors import SourceUnavailable
from ingest.log.embedded import LogReader
from ingest.streams.source import Record
from tests.end_to_end.threads import Plan


class Withheld(LogReader):
    """A log whose last records cannot be read until something has happened."""

    def __init__(self, folder: Path, last: int, has_happened: Callable[[], bool]) -> None:
        """last: the offset, in every partition, of the first of those records"""
        super().__init__(folder / "log", "clicks")
        self._last, self._has_happened = last, has_happened

    def read(self, partition: int, offset: int, max_bytes: int = 1 << 20) -> list[Record]:
        if self._has_happened():
            return super().read(partition, offset, max_bytes)
        if offset >= self._last:
            raise SourceUnavailable("not yet")
        return [record for record in super().read(partition, offset, max_bytes) if record.offset < self._last]


def has_generation(plan: Plan, number: int) -> bool:
    """Whether that generation is on record."""
    return read_history(plan.folder / "journal").last_generation >= number


def paused(plan: Plan, steps: int, has_happened: Callable[[], bool]) -> Plan:
    """The same run; its stream pauses after about so many steps until something has happened."""
    partitions = sum(path.is_dir() for path in (plan.stream.folder / plan.topic).iterdir())
    last = steps * plan.batch // partitions
    return replace(plan, open_source=lambda: Withheld(plan.folder, last, has_happened))

"""How long a run goes without completing a step, read from its journal while it is written."""

import time
from pathlib import Path

from dispatch.journal.history import JOURNAL
from dispatch.journal.log import read_records
from dispatch.journal.records import GenerationStarted, StepDone
from infra.base.errors import FreshetError

LOOK_SECONDS = 1.0
READING_SHARE = 0.1
"""Share of the time that may be spent on reading the journal, which grows."""
CONVINCING = 3
"""How often new steps must be seen after a fault until the run has recovered: some may have been under way."""


class Progress:
    """When new steps were seen to be completed."""

    def __init__(self, folder: Path) -> None:
        self._journal = folder / JOURNAL
        self._look_at = 0.0
        self._newest: tuple[int, int] | None = None
        self._seen_at: float | None = None
        self._seen_since = 0
        self.longest_seconds = 0.0
        """Longest time without new steps."""

    @property
    def steps(self) -> int:
        return 0 if self._newest is None else self._newest[1]

    @property
    def is_over_it(self) -> bool:
        """Whether new steps have been completed since the last fault."""
        return self._seen_since >= CONVINCING

    def strike(self) -> None:
        """Notes that a fault has just happened."""
        self._seen_since = 0

    def read_if_due(self) -> None:
        """Reads the journal if it is time to."""
        began = time.monotonic()
        if began < self._look_at:
            return
        newest = self.read_newest()
        self._look_at = began + max(LOOK_SECONDS, (time.monotonic() - began) / READING_SHARE)
        if newest is not None and newest != self._newest:
            self.see(newest, began)

    def see(self, newest: tuple[int, int], now: float) -> None:
        """Notes (generation, number) of the newest completed step."""
        if self._seen_at is not None:
            self.longest_seconds = max(self.longest_seconds, now - self._seen_at)
        self._newest = newest
        self._seen_at = now
        self._seen_since += 1

    def read_generation(self) -> GenerationStarted | None:
        """The newest generation; None if there is none yet, or it cannot be read now."""
        try:
            started = [record for record in read_records(self._journal) if isinstance(record, GenerationStarted)]
        except FreshetError:  # as below
            return None
        return started[-1] if started else None

    def read_newest(self) -> tuple[int, int] | None:
        """(generation, number) of the newest completed step; None if there is none yet, or it cannot be read now."""
        generation = 0
        newest = None
        try:
            for record in read_records(self._journal):
                if isinstance(record, GenerationStarted):
                    generation = record.number
                elif isinstance(record, StepDone):
                    newest = generation, record.step
        except FreshetError:  # a segment has just been removed, or there is none yet
            return None
        return newest

"""Events that a run trains while it is measured: written ahead of it, so that it never waits for any.

How many a measurement needs follows from the one before it. They are written between measurements, and one in which
they ran out is repeated.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TypeVar

from dispatch.journal.history import JOURNAL
from dispatch.journal.log import read_records
from dispatch.journal.records import StepDecided
from infra.base.errors import FreshetError
from infra.chaos.main import ChaosJob, end, launch

SPARE = 6
"""Measurements that may be repeated, each time with at least twice as many events."""
LEFT_SHARE = 0.1
"""Share of what was trained that must be left at the end; otherwise the run may have waited for events."""
PATIENCE_SECONDS = 600.0

FoundT = TypeVar("FoundT")


@dataclass
class EventsAhead:
    """Events that wait until the run trains them."""

    write: Callable[[int], None]
    count_trained: Callable[[], int]
    tell: Callable[[str], None]
    needed: int
    """Events that must wait when the next measurement begins."""
    written: int = field(default=0, init=False)
    spare: int = field(default=SPARE, init=False)

    @property
    def untrained(self) -> int:
        return self.written - self.count_trained()

    def top_up(self) -> None:
        """Makes at least as many wait as are needed."""
        if (missing := self.needed - self.untrained) > 0:
            self.tell(f"writing {missing:,} events")
            self.write(missing)
            self.written += missing

    def measure(self, what: Callable[[], FoundT]) -> FoundT:
        """What a measurement found that had events to its end; FreshetError if they run out again and again."""
        while True:
            self.top_up()
            before = self.count_trained()
            found = what()
            trained = self.count_trained() - before
            if self.untrained > LEFT_SHARE * trained:
                self.needed = max(2 * trained, self.needed)
                return found
            if not self.spare:
                raise FreshetError(
                    f"the events ran out in more than {SPARE} measurements, {self.written:,} in all; expected the run "
                    "to train all the time; choose shorter windows"
                )
            self.spare -= 1
            self.tell(f"the events ran out after {trained:,}; once more, with more of them")
            self.needed = 2 * max(trained, self.needed)  # some of them were trained while others were written


def events_ahead(job: ChaosJob, events: int, tell: Callable[[str], None]) -> EventsAhead:
    """Events of the synthetic stream for a run; so many are needed at first."""
    seeds = count()
    return EventsAhead(
        lambda missing: write_events(job, missing, next(seeds)), lambda: count_trained(job.folder), tell, events
    )


def write_events(job: ChaosJob, events: int, seed: int) -> None:
    producing = launch(job, "produce", "--limit", str(events), "--seed", str(seed), "--packed", "64")
    try:
        if status := producing.wait(PATIENCE_SECONDS):
            raise FreshetError(f"freshet produce ended with status {status}; expected 0; see {job.folder}")
    finally:
        end(producing, PATIENCE_SECONDS)


def count_trained(folder: Path) -> int:
    """Samples of all steps so far, according to the journal."""
    if not (folder / JOURNAL).exists():
        return 0
    return sum(len(record.assignment) for record in read_records(folder / JOURNAL) if isinstance(record, StepDecided))

"""The age of an event is the time from its append to the first answer of a snapshot that has learnt from it.

Windows have events to train for as long as they last, however fast the run is.
"""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.serving.freshness import (
    SPARE_PAIRS,
    EventsAhead,
    FreshnessLoad,
    SeenSnapshots,
    Window,
    _write,
    ages_of,
    measure_pairs,
)
from infra.base.errors import FreshetError
from infra.chaos.main import ChaosJob

ASKED = SeenSnapshots(times=[10.0, 11.0, 12.0], snapshots=[(0, 3), (0, 7), (1, 8)])


def test_an_event_is_as_old_as_the_first_answer_that_knows_it() -> None:
    assert ages_of([(9.0, 2), (9.0, 3), (9.5, 4), (9.5, 8)], ASKED) == [1.0, 1.0, 1.5, 2.5]


def test_an_event_that_no_answer_knows_is_an_error() -> None:
    with pytest.raises(FreshetError, match="step 9 was not served"):
        ages_of([(9.0, 9)], ASKED)


class PretendRun:
    """Trains a number of events in every pair of windows, and some while others are written; or all there are."""

    def __init__(self, speed: int, first: int, meanwhile: int = 0) -> None:
        self.speed, self.meanwhile = speed, meanwhile
        self.trained = self.pairs = 0
        self.written: list[int] = []
        self.ahead = EventsAhead(self.write, lambda: self.trained)
        self.ahead.top_up(first)
        self.load = FreshnessLoad(rate=1.0, seconds=1.0, window_seconds=1.0, windows=3, events=first)
        self.lines: list[str] = []

    def write(self, events: int) -> None:
        self.written.append(events)
        self.trained += min(self.meanwhile, sum(self.written) - self.trained)

    def pair(self) -> tuple[Window, Window]:
        self.pairs += 1
        self.trained += min(self.speed, self.ahead.untrained)
        return (self.pairs, self.pairs + 0.4), (self.pairs + 0.5, self.pairs + 0.9)

    def measured(self) -> list[float]:
        """When the windows that count began."""
        return [published[0] for published, _ in measure_pairs(self.pair, self.ahead, self.load, self.lines.append)]


def test_enough_events_are_topped_up_between_windows() -> None:
    run = PretendRun(speed=1000, first=2000)
    assert run.measured() == [1, 2, 3]
    assert run.written == [2000, 1000, 1000]


def test_windows_in_which_the_events_ran_out_are_measured_again_with_more() -> None:
    run = PretendRun(speed=1000, first=300)
    assert run.measured() == [3, 4, 5]
    assert run.written[:3] == [300, 600, 1200]
    assert sum("ran out after" in line for line in run.lines) == 2


def test_events_trained_while_others_are_written_are_made_up_for() -> None:
    run = PretendRun(speed=1000, first=1000, meanwhile=1000)
    assert run.measured() == [3, 4, 5]


def test_a_run_that_no_events_suffice_for_is_given_up() -> None:
    run = PretendRun(speed=10**9, first=1000)
    with pytest.raises(FreshetError, match=r"ran out in more than 6 windows, 511,000 in all; .*; raise --events"):
        run.measured()
    assert run.pairs == run.load.windows + SPARE_PAIRS


class Interrupted(subprocess.Popen[bytes]):
    """A process that waits for input; the first who waits for its end is interrupted."""

    is_first = True

    def __init__(self) -> None:
        super().__init__([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    def wait(self, timeout: float | None = None) -> int:
        if self.is_first:
            self.is_first = False
            raise KeyboardInterrupt
        return super().wait(timeout)


def test_an_interrupted_benchmark_ends_the_producer_that_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Interrupted() as producing:
        monkeypatch.setattr("benchmarks.serving.freshness.launch", lambda *_: producing)
        with pytest.raises(KeyboardInterrupt):
            _write(ChaosJob(tmp_path, 0, 0.0, 0.0, 0.0, ()), events=1, seed=0, tell=print)
        assert producing.returncode == -signal.SIGTERM

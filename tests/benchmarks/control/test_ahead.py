"""Measurements have events to train for as long as they last, however fast the run is."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.control.ahead import SPARE, EventsAhead, write_events
from infra.base.errors import FreshetError
from infra.chaos.main import ChaosJob


class PretendRun:
    """Trains a number of events in every pair of windows, and some while others are written; or all there are."""

    def __init__(self, speed: int, first: int, meanwhile: int = 0) -> None:
        self.speed, self.meanwhile = speed, meanwhile
        self.trained = self.pairs = 0
        self.written: list[int] = []
        self.lines: list[str] = []
        self.ahead = EventsAhead(self.write, lambda: self.trained, self.lines.append, first)
        self.ahead.top_up()

    def write(self, events: int) -> None:
        self.written.append(events)
        self.trained += min(self.meanwhile, sum(self.written) - self.trained)

    def pair(self) -> int:
        """Its number."""
        self.pairs += 1
        self.trained += min(self.speed, self.ahead.untrained)
        return self.pairs

    def measured(self) -> list[int]:
        """Which pairs count, of three that are wanted."""
        return [self.ahead.measure(self.pair) for _ in range(3)]


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
    with pytest.raises(FreshetError, match=r"ran out in more than 6 measurements, 127,000 in all"):
        run.measured()
    assert run.pairs == SPARE + 1


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
        monkeypatch.setattr("benchmarks.control.ahead.launch", lambda *_: producing)
        with pytest.raises(KeyboardInterrupt):
            write_events(ChaosJob(tmp_path, 0, 0.0, 0.0, 0.0, ()), events=1, seed=0)
        assert producing.returncode == -signal.SIGTERM

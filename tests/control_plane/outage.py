"""Databases that are away for long while a run trains: what that costs the run, and what they hold afterwards.

    python -m tests.control_plane.outage 60

The run's API uses PostgreSQL, all of whose processes are stopped (SIGSTOP) for so many seconds; a second one uses
SQLite, whose disk is full for as long. Each is looked at for a third of that time before and after. Needs root.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.control_plane.folding import differences
from tests.control_plane.steered import RUN, Steered, read_cursor
from tests.databases import resume, running_postgres, suspend
from tests.disks import fill, small_disk
from tests.end_to_end.living import producing
from tests.end_to_end.processes import wait_until

RATE = 3000.0
"""events a second"""
DISK_KILOBYTES = 65536


class Speed(NamedTuple):
    """Of a run over some time."""

    steps: float
    """a second"""
    lag: int
    """events that waited at its end"""


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def measure(run: Steered, seconds: float) -> Speed:
    before, began = run.step(), time.monotonic()
    time.sleep(seconds)
    status = run.read(kind="sqlite")["status"]
    return Speed((status["step"] - before) / (time.monotonic() - began), status["events"]["lag"])


def lose(run: Steered, kind: str, begin: Callable[[], Any], end: Callable[[], Any], seconds: float) -> None:
    """Prints what an outage of one database comes to."""
    before = measure(run, seconds / 3)
    begin()
    try:
        during = measure(run, seconds)
    finally:
        end()
    newest, began = run.cursor(), time.monotonic()
    behind = newest - read_cursor(run.databases[kind])
    wait_until(lambda: read_cursor(run.databases[kind]) >= newest, run.process)
    caught_up = time.monotonic() - began
    after = measure(run, seconds / 3)
    for name, speed in (("before", before), ("during", during), ("after", after)):
        say(f"{kind}: {name}: {speed.steps:.1f} steps/s, {speed.lag} events wait")
    say(f"{kind}: {behind} frames behind, caught up within {caught_up:.1f} s")


def main(seconds: float) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        running_postgres() as postgres,
        small_disk(Path(folder) / "disk", DISK_KILOBYTES) as disk,
    ):
        run = Steered(Path(folder), disk, postgres)
        try:
            with producing(run.stream, RATE):
                run.start(())
                run.wait_for_steps(100)
                server = postgres.processes()
                lose(run, "postgresql", lambda: suspend(server), lambda: resume(server), seconds)
                lose(run, "sqlite", lambda: fill(disk), lambda: (disk / "filling").unlink(), seconds)
                run.stop()
            frames = run.journal()
            for kind, url in run.databases.items():
                wait_until(lambda url=url: read_cursor(url) == frames[-1].cursor)  # type: ignore[misc]
                different = differences(url, RUN, frames)
                say(f"{kind}: {frames[-1].cursor} frames, {len(different)} differences from the journal")
        finally:
            run.close()


if __name__ == "__main__":
    main(float(sys.argv[1]))

"""Chaos with clients on a real PostgreSQL that is killed and stopped, too; then it is compared with the journal.

    python -m tests.control_plane.storm 10

``freshet chaos --clients`` strikes the run's processes for so many minutes, by a seed that is drawn; meanwhile the
database is killed and started again, or all of its processes are stopped for some seconds. At the end an API reads the
rest of the journal, and the tables must be what other code folds from it. Exits with 1 on any violation.

A database that is away for seconds is told with 503 to whoever needs it: of requests that were under way meanwhile two
such answers in a row are counted and are no violation. Any other 5xx is one, and so is a request that is answered late.
"""

import json
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from infra.chaos.clients import SERVER_ERROR, HardRequest
from infra.chaos.main import RECORD
from infra.chaos.promises import MOST_ERRORS, read_records_of
from tests.control_plane.folding import differences, read_journal
from tests.control_plane.outage import say
from tests.control_plane.steered import read_cursor
from tests.databases import PostgresServer, resume, running_postgres, suspend
from tests.end_to_end.processes import ROOT, environment, freshet, start, wait_until

RUN = "chaos"
PAUSE_SECONDS = 15.0, 45.0
"""between two outages of the database, drawn from here"""
STOPPED_SECONDS = 1.0, 6.0
"""how long it is stopped, drawn from here"""
RECOVERY_SECONDS = 10.0
"""after an outage, in which connections that broke are made anew"""
UNAVAILABLE = 503
TOLD_TWICE = "no 5xx twice"
DATABASE = "FRESHET_API__DATABASE"


@dataclass(frozen=True)
class DatabaseOutage:
    """A time in which the database was away, in seconds since 1970."""

    kind: str
    began: float
    ended: float

    def explains(self, hard: HardRequest) -> bool:
        """Whether a request was under way then, was told nothing but that, and was answered soon after."""
        is_answered = hard.at_seconds + hard.seconds < self.ended + RECOVERY_SECONDS
        is_told = all(status < SERVER_ERROR or status == UNAVAILABLE for status in hard.statuses)
        return hard.at_seconds + hard.seconds > self.began and is_answered and is_told


class DatabaseStorm:
    """Kills and stops a database."""

    def __init__(self, postgres: PostgresServer, seed: int) -> None:
        self._postgres, self._random = postgres, Random(seed)
        self.outages: list[DatabaseOutage] = []

    def pause(self, is_over: Callable[[], bool]) -> bool:
        """Waits for the next outage; returns whether there is to be one."""
        until = time.monotonic() + self._random.uniform(*PAUSE_SECONDS)
        while time.monotonic() < until and not is_over():
            time.sleep(0.2)
        return not is_over()

    def strike(self) -> None:
        kind, began = self._random.choice(("kill", "stop")), time.time()
        if kind == "kill":
            self._postgres.kill()
            self._postgres.start()
        else:
            processes = self._postgres.processes()
            suspend(processes)
            time.sleep(self._random.uniform(*STOPPED_SECONDS))
            resume(processes)
        self.outages.append(DatabaseOutage(kind, began, time.time()))
        say(f"{kind} database, away for {self.outages[-1].ended - began:.1f} s")


def main(minutes: float) -> int:
    seed = secrets.randbelow(1 << 31)
    say(f"seed {seed}")
    with tempfile.TemporaryDirectory() as place, running_postgres() as postgres:
        folder, told = Path(place) / "run", Path(place) / "report.json"
        database, storm = postgres.new_database(), DatabaseStorm(postgres, seed)
        how = ("--clients", "--minutes", str(minutes), "--seed", str(seed), "--run", folder, "--json", told)
        chaos = subprocess.Popen(
            freshet("chaos", *how), cwd=ROOT, env=environment() | {DATABASE: database}, start_new_session=True
        )
        try:
            wait_until((folder / RECORD).exists, chaos)  # type: ignore[arg-type]
            until = time.monotonic() + minutes * 60
            while storm.pause(lambda: time.monotonic() > until or chaos.poll() is not None):
                storm.strike()
            chaos.wait()
        finally:
            chaos.terminate()
            chaos.wait()
        report = json.loads(told.read_text())
        violations = [*judge(report, folder, storm.outages), *compare(folder, database)]
    for violation in violations:
        say(f"violated: {violation}")
    return 1 if violations else 0


def judge(report: dict[str, Any], folder: Path, outages: list[DatabaseOutage]) -> list[str]:
    """Violations of the run that no outage of the database explains."""
    found = {finding["name"]: finding for finding in report["findings"]}
    violations = [*report["surprises"]]
    violations += [
        f"{name}: {each['found']}" for name, each in found.items() if each["ok"] is False and name != TOLD_TWICE
    ]
    twice = [hard for hard in read_records_of(folder).hard() if hard.most_errors > MOST_ERRORS]
    unexplained = [hard for hard in twice if not any(outage.explains(hard) for outage in outages)]
    violations += [f"{TOLD_TWICE}: {hard}" for hard in unexplained]
    if found[TOLD_TWICE]["ok"] is False and not twice:
        violations.append(f"{TOLD_TWICE}: {found[TOLD_TWICE]['found']}")
    kinds = [outage.kind for outage in outages]
    say(
        f"{len(report['struck'])} faults, {report['steps']:,} steps; database killed {kinds.count('kill')} times, "
        f"stopped {kinds.count('stop')} times; {len(twice) - len(unexplained)} requests with 5xx twice meanwhile"
    )
    for finding in report["findings"]:
        say(f"{finding['name']}: {finding['ok']}: {finding['found']}")
    return violations


def compare(folder: Path, database: str) -> list[str]:
    """Where the tables tell something else than the journal, once an API has read all of it."""
    frames = read_journal(folder / "journal")
    api = start("api", "--name", "api-after", "--runs", folder, "--set", "api.port=0", **{DATABASE: database})
    try:
        wait_until(lambda: read_cursor(database, RUN) == frames[-1].cursor, api, every_seconds=0.5)
    finally:
        api.terminate()
        api.communicate()
    different = differences(database, RUN, frames)
    say(f"{frames[-1].cursor:,} frames of the journal, {len(different)} differences in the database")
    return different


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))

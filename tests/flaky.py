"""Finds tests that fail now and then: runs the tests that use processes repeatedly, beside a busy loop on each core.

    make flaky RUNS=10                                      or, for some tests only:
    .venv/bin/python -m tests.flaky --runs 20 --loops 4 tests/end_to_end/test_stopped.py

Every run draws a new seed. Its output is kept in ``build/flaky``; a table of all runs, and the tests that failed in any
of them, are printed at the end. The exit code is 1 if a test failed.
"""

import argparse
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as Xml
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

PROCESS_TESTS = (
    *("tests/end_to_end", "tests/control_plane", "tests/infra", "tests/api", "tests/serving", "tests/ingest/kafka"),
    *("tests/benchmarks", "tests/trainer"),
)
"""Tests that start processes or servers, or wait for threads."""
FOLDER = Path("build/flaky")
BUSY = "import os, sys; parent = int(sys.argv[1])\nwhile os.getppid() == parent: pass"
"""A busy loop that ends with its parent, so that nothing is left behind if that is killed."""


@dataclass(frozen=True)
class Outcome:
    """The result of one run of pytest."""

    status: int
    seconds: float
    tests: int
    skipped: int
    failed: tuple[str, ...]
    """Names of tests, as pytest accepts them."""


@contextmanager
def busy_loops(number: int) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """That many processes that only compute, until the end of the context."""
    loops = [subprocess.Popen([sys.executable, "-c", BUSY, str(os.getpid())]) for _ in range(number)]
    try:
        yield loops
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run_once(number: int, tests: Sequence[str], workers: int, folder: Path) -> Outcome:
    """Runs tests in a separate pytest, which leaves its output and its report in the folder."""
    report = folder / f"run-{number}.xml"
    report.unlink(missing_ok=True)
    shared = [] if workers == 0 else ["-n", str(workers), "--no-loadscope-reorder"]
    command = [sys.executable, "-m", "pytest", "-q", *shared, f"--junitxml={report}", *tests]
    began = time.monotonic()
    with (folder / f"run-{number}.log").open("wb") as output:
        status = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT).returncode
    return read_report(report, status, time.monotonic() - began)


def read_report(report: Path, status: int, seconds: float) -> Outcome:
    """The outcome in a report; a run that ended without a report has failed as a whole."""
    if not report.exists():
        return Outcome(status, seconds, tests=0, skipped=0, failed=("(no report: see the log)",))
    cases = list(Xml.parse(report).iter("testcase"))
    failed = [name_of(case) for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    return Outcome(status, seconds, len(cases), skipped, tuple(dict.fromkeys(failed)))


def name_of(case: Xml.Element) -> str:
    return f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"


def show(outcomes: Sequence[Outcome], console: Console) -> None:
    """Prints a table of the runs, and the tests that failed, one per line."""
    runs = Table("run", "seconds", "tests", "skipped", "failed", "status", title="runs")
    for number, outcome in enumerate(outcomes, 1):
        counts = outcome.tests, outcome.skipped, len(outcome.failed), outcome.status
        runs.add_row(str(number), f"{outcome.seconds:.0f}", *map(str, counts))
    console.print(runs)
    failures = Counter(name for outcome in outcomes for name in outcome.failed)
    if not failures:
        console.print(f"no test failed in {len(outcomes)} runs")
        return
    for name, count in failures.most_common():
        where = [str(number) for number, outcome in enumerate(outcomes, 1) if name in outcome.failed]
        line = f"failed in {count} of {len(outcomes)} runs ({', '.join(where)}): {name}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.flaky", description="Look for tests that fail now and then.")
    parser.add_argument("--runs", type=int, default=10, help="runs of the tests (10)")
    parser.add_argument("--loops", type=int, default=os.cpu_count() or 1, help="busy loops beside them (one a core)")
    parser.add_argument("--workers", type=int, default=3, help="processes of pytest-xdist; 0: none (3)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"for output and reports ({FOLDER})")
    parser.add_argument("tests", nargs="*", default=PROCESS_TESTS, help="paths, or arguments of pytest after --")
    given = parser.parse_args(arguments)
    given.folder.mkdir(parents=True, exist_ok=True)
    console = Console(width=120 if not sys.stdout.isatty() else None)
    outcomes: list[Outcome] = []
    with busy_loops(given.loops):
        for number in range(1, given.runs + 1):
            outcomes.append(run_once(number, given.tests or PROCESS_TESTS, given.workers, given.folder))
            newest = outcomes[-1]
            console.print(f"run {number}: {newest.tests} tests in {newest.seconds:.0f} s, {len(newest.failed)} failed")
    show(outcomes, console)
    return int(any(outcome.status or outcome.failed for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())

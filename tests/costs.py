"""The cost of the suite, by folder: ``--costs`` adds a table of seconds and processor seconds to pytest's summary.

Processor time is that of the process that runs a test, of its threads, and of the processes that it started and waited
for. Fixtures that several tests share are counted with the first of them; a broker or a database server that outlives
its tests is not counted.
"""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import PurePosixPath

import pytest

WALL, CPU = "wall_seconds", "cpu_seconds"
DEPTH = 2
"""Number of folders of a path that make up a row, as in tests/api."""
LONGEST_SHOWN = 12
STARTED = pytest.StashKey[tuple[float, float]]()
"""Wall and processor seconds at the start of a test."""


@dataclass
class Cost:
    """The cost of some tests together."""

    tests: int = 0
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0

    def add(self, other: "Cost") -> None:
        self.tests += other.tests
        self.wall_seconds += other.wall_seconds
        self.cpu_seconds += other.cpu_seconds


class Costs:
    """Collects the cost of every test, in the process that reports them."""

    def __init__(self) -> None:
        self.of_tests: dict[str, Cost] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        measured = dict(report.user_properties)
        if report.when == "teardown" and WALL in measured:
            self.of_tests[report.nodeid] = Cost(1, float(str(measured[WALL])), float(str(measured[CPU])))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("costs")
        for line in table(by_folder(self.of_tests)):
            terminalreporter.write_line(line)
        longest = sorted(by_file(self.of_tests).items(), key=lambda each: -each[1].cpu_seconds)[:LONGEST_SHOWN]
        for line in table(dict(longest)):
            terminalreporter.write_line(line)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", action="store_true", help="Show what tests cost, by folder.")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--costs") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Costs())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    item.stash[STARTED] = time.perf_counter(), cpu_seconds()
    yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "teardown" and STARTED in item.stash:
        wall, cpu = item.stash[STARTED]
        report.user_properties.append((WALL, time.perf_counter() - wall))
        report.user_properties.append((CPU, cpu_seconds() - cpu))
    return report


def cpu_seconds() -> float:
    """Processor time of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def by_folder(of_tests: dict[str, Cost]) -> dict[str, Cost]:
    return _summed(of_tests, lambda path: "/".join(path.parent.parts[:DEPTH]))


def by_file(of_tests: dict[str, Cost]) -> dict[str, Cost]:
    return _summed(of_tests, str)


def _summed(of_tests: dict[str, Cost], row_of: Callable[[PurePosixPath], str]) -> dict[str, Cost]:
    rows: dict[str, Cost] = defaultdict(Cost)
    for name, cost in sorted(of_tests.items()):
        rows[row_of(PurePosixPath(name.partition("::")[0]))].add(cost)
    return dict(rows)


def table(rows: dict[str, Cost]) -> list[str]:
    """One line per row, and one for the total."""
    total = Cost()
    for cost in rows.values():
        total.add(cost)
    return [f"{'':48}  tests    wall s     cpu s"] + [
        f"{name:48} {cost.tests:6} {cost.wall_seconds:9.1f} {cost.cpu_seconds:9.1f}"
        for name, cost in [*rows.items(), ("together", total)]
    ]

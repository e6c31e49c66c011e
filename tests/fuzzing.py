"""Limits tests that could run for hours: each has a short default that draws different cases every time.

Fuzzers draw from one seed, which is new in every run of the suite and printed at the top and with a failure; ``--seed``
repeats a run, and ``--fuzz-rounds`` multiplies the cases. Tests marked ``one_by_one`` have a case for every place at
which a process can fail: some of them run today and others tomorrow, by the date in UTC, so that all have run within
days. ``--day`` repeats another day, and ``--all-faults`` runs all of them.

All processes of a run agree on both, because those of pytest-xdist get them from the process that started them.
"""

import random
from collections.abc import Sequence
from datetime import UTC, date, datetime
from itertools import groupby
from typing import Any, TypeVar

import pytest

Case = TypeVar("Case")
SEEDS = 1 << 32
A_DAY = 1
"""Number of cases of a test that run in one day, unless its mark says ``a_day``."""
CHOSEN = "fuzzing"
"""Key under which seed and day are sent to the processes of pytest-xdist."""
SEED = pytest.StashKey[int]()
DAY = pytest.StashKey[date]()
_drawn: tuple[int, int] | None = None
"""Seed and rounds, for modules that draw when they are imported."""


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "Run fuzzers so many times as long as by default."
    parser.addoption("--fuzz-rounds", type=int, default=1, metavar="N", help=text)
    text = "Have fuzzers draw what they drew in the run of the suite that printed this seed."
    parser.addoption("--seed", type=int, metavar="N", help=text)
    text = "Run the fault points of another day than today, as YYYY-MM-DD."
    parser.addoption("--day", type=date.fromisoformat, metavar="DATE", help=text)
    text = "Run the tests of every fault point, and not only those of the day."
    parser.addoption("--all-faults", action="store_true", help=text)


def seed_and_rounds() -> tuple[int, int]:
    """The values of ``fuzz_seed`` and ``fuzz_rounds``; known once pytest is configured."""
    assert _drawn is not None, "no run of pytest has begun"
    return _drawn


def pytest_configure(config: pytest.Config) -> None:
    global _drawn
    text = "one_by_one(a_day=N): has a case for every fault point, of which N run in a day, and all with --all-faults"
    config.addinivalue_line("markers", text)
    seed, day = config.getoption("--seed"), config.getoption("--day")
    told = getattr(config, "workerinput", {}).get(CHOSEN)
    if told is not None:
        seed, day = told[0], date.fromisoformat(told[1])
    config.stash[SEED] = random.randrange(SEEDS) if seed is None else seed
    config.stash[DAY] = day or datetime.now(UTC).date()
    _drawn = config.stash[SEED], config.getoption("--fuzz-rounds")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Called when a process of pytest-xdist is about to be started."""
    node.workerinput[CHOSEN] = node.config.stash[SEED], node.config.stash[DAY].isoformat()


def pytest_report_header(config: pytest.Config) -> str:
    faults = "all fault points" if config.getoption("--all-faults") else "some fault points"
    return f"drawn: {faults}; repeat with {repeating(config)}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(f"what was drawn is drawn again with {repeating(config)}", yellow=True)


def repeating(config: pytest.Config) -> str:
    """The options that repeat what this run draws."""
    return f"--seed {config.stash[SEED]} --day {config.stash[DAY]}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all-faults"):
        return
    marked = [(item, mark) for item in items if (mark := item.get_closest_marker("one_by_one"))]
    left_out: set[pytest.Item] = set()
    for _, cases in groupby(marked, key=lambda found: found[0].nodeid.partition("[")[0]):
        found = list(cases)
        today = share_of_day([item for item, _ in found], found[0][1].kwargs.get("a_day", A_DAY), config.stash[DAY])
        left_out |= {item for item, _ in found} - set(today)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def share_of_day(cases: Sequence[Case], a_day: int, day: date) -> list[Case]:
    """The cases of one day, ``a_day`` of them; each day continues after the one before, and then starts over."""
    first = day.toordinal() * a_day
    return [cases[(first + number) % len(cases)] for number in range(min(a_day, len(cases)))]


@pytest.fixture
def fuzz_rounds(request: pytest.FixtureRequest) -> int:
    """Factor by which fuzzers multiply their number of cases; 1 by default."""
    return int(request.config.getoption("--fuzz-rounds"))


@pytest.fixture(scope="session")
def fuzz_seed(request: pytest.FixtureRequest) -> int:
    """The seed of fuzzers; another one in every run of the suite."""
    return request.config.stash[SEED]

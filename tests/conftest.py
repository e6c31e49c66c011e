"""Fixtures for all tests: one broker and one PostgreSQL.

hypothesis has no time limits, because the first call of a kernel compiles it.
"""

import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import preloaded
from tests.brokers import TestBroker, shared_broker
from tests.cores import core_files, explain
from tests.databases import PostgresServer, shared_postgres
from tests.scheduling import Shares, name_apart, order_of

settings.register_profile("freshet", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("freshet")

pytest_plugins = (
    "tests.buckets",
    "tests.costs",
    "tests.failures",
    "tests.fuzzing",
    "tests.own_modules",
    "tests.quick",
    "tests.standstill",
)

DOWNLOAD_SECONDS = 600
"""The first test that needs the broker may have to download it."""


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBroker]:
    """A real Kafka broker. Skips without Java and Maven; fails if they are installed but the broker does not start."""
    with shared_broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """The PostgreSQL of the test run. Skips if it is not installed."""
    base = tmp_path_factory.getbasetemp()
    with shared_postgres(base.parent if base.name.startswith("popen-") else base) as server:
        yield server


BROKER_FIXTURE = "kafka"
CORE_FILES = pytest.StashKey[list[Path]]()
STARTED = time.time()


def pytest_configure() -> None:
    """Makes processes that crash leave a core file, if the system allows it; this includes children.

    Commands of Freshet are forked with their modules loaded. SIGHUP and SIGINT get their default actions: under nohup,
    or in the background of a shell, every process of the tests would ignore them, and some tests send them. Bytecode is
    written even where Python is told to write none: otherwise every worker of every run would rewrite and compile all
    test files again. Batches of commands have their full size from the start, since many tests count steps;
    ``test_growth`` is about growth.
    """
    os.environ.setdefault("FRESHET_STREAM__FIRST_BATCH", "0")
    sys.dont_write_bytecode = False
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))
    preloaded.install()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Shares:
    return Shares(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Freezes everything that was imported and collected, so that the garbage collector never has to look at it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    name_apart(items)
    items.sort(key=lambda item: order_of(item.nodeid))
    for item in items:
        if BROKER_FIXTURE in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(DOWNLOAD_SECONDS))
            break


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails the run after a crash, even if no test noticed it."""
    config = session.config
    config.stash[CORE_FILES] = [] if hasattr(config, "workerinput") else core_files(config.rootpath, STARTED)
    if config.stash[CORE_FILES]:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for core in config.stash.get(CORE_FILES, []):
        terminalreporter.section("crash", red=True)
        for line in explain(core):
            terminalreporter.write_line(line)

"""Ends a test run that hangs, and reports where.

pytest-timeout ends a test that waits in Python. It does not reach a worker of pytest-xdist that was stopped by a
signal,
or that waits inside a library, and the run would wait for that worker forever. So the process that collects the reports
watches them: if tests are running and none has ended for ``standstill_seconds``, it prints the running processes, makes
the workers write the stacks of their threads, and ends them with the processes that they started. pytest-xdist then
reports which test each was in, and continues with the others.
"""

import faulthandler
import os
import signal
import sys
import threading
import time

import psutil
import pytest

STACKS_SIGNAL = signal.SIGUSR2
STACKS_SECONDS = 3.0
"""Time for a worker to write its stacks before it is ended; a stopped worker writes none."""
LOOK_SECONDS = 1.0
STDERR = 2
OPTION = "standstill_seconds"


class Watch:
    """Records which tests run and when one last started or ended; a thread checks it."""

    def __init__(self, silence_seconds: float) -> None:
        self._silence_seconds = silence_seconds
        self._running: set[str] = set()
        self._heard = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="standstill", daemon=True)

    def pytest_sessionstart(self) -> None:
        self._thread.start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running.add(nodeid)
        self._heard = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.discard(nodeid)
        self._heard = time.monotonic()

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str) -> None:
        self._running.discard(crashitem)

    def pytest_unconfigure(self) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            if self._running and time.monotonic() - self._heard > self._silence_seconds:
                self._heard = time.monotonic()
                end_workers(f"no test has ended for {self._silence_seconds:g} seconds")


def end_workers(reason: str) -> None:
    """Ends the children of this process and their descendants, after writing the stacks of their threads."""
    workers = psutil.Process().children()
    below = [process for worker in workers for process in worker.children(recursive=True)]
    print(f"\n{reason}; what runs:", *map(described, [*workers, *below]), sep="\n", file=sys.__stderr__, flush=True)
    for worker in workers:
        _send(worker, STACKS_SIGNAL)
    time.sleep(STACKS_SECONDS)
    for process in [*workers, *below]:  # workers first: a test whose process has ended might continue and pass
        _send(process, signal.SIGKILL)


def described(process: psutil.Process) -> str:
    try:
        return f"  {process.pid} ({process.status()}, child of {process.ppid()}): {' '.join(process.cmdline())[:200]}"
    except psutil.Error as error:
        return f"  {process.pid}: {error}"


def _send(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(OPTION, "Seconds without a report after which the workers of pytest-xdist are ended.", default="900")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        faulthandler.register(STACKS_SIGNAL, file=os.dup(STDERR), all_threads=True)  # STDERR itself will be captured
    elif getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(Watch(float(config.getini(OPTION))))

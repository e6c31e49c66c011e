"""A process that takes a processor away from another one, and gives it back.

Who waits for whom is settled by real-time priorities, so the rest of the machine may be as busy as it likes: a process
that is ``favoured`` waits for nobody on its processor but for the one that ``contends`` there.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

FAVOURED, CONTENDING = 1, 2
"""priorities"""
PROGRAM = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(int(sys.argv[2])))
print("burning", flush=True)
while True:
    until = time.perf_counter() + 0.0006
    while time.perf_counter() < until:
        pass
    time.sleep(0.0003)
"""
"""keeps one processor busy for two thirds of the time, in stretches shorter than a decision"""


def may_set_priorities() -> bool:
    """Whether this process may; it stays as it is."""
    usual = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(FAVOURED))
    except PermissionError:
        return False
    os.sched_setscheduler(0, *usual)
    return True


@contextmanager
def favoured(process: psutil.Process) -> Iterator[int]:
    """All threads of a process on one processor, before all usual work there; gives the processor's number."""
    processors = os.sched_getaffinity(process.pid)
    processor = max(processors)
    _set_all(process, {processor}, os.SCHED_FIFO, FAVOURED)
    try:
        yield processor
    finally:
        if process.is_running():
            _set_all(process, processors, os.SCHED_OTHER, 0)


@contextmanager
def contending(processor: int) -> Iterator[None]:
    """Another process has the processor most of the time, from the beginning of the context to its end."""
    command = [sys.executable, "-c", PROGRAM, str(processor), str(CONTENDING)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as burning:
        try:
            assert burning.stdout is not None
            assert burning.stdout.readline() == "burning\n"
            yield
        finally:
            burning.kill()


def _set_all(process: psutil.Process, processors: set[int], policy: int, priority: int) -> None:
    for thread in Path(f"/proc/{process.pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), processors)
        os.sched_setscheduler(int(thread.name), policy, os.sched_param(priority))

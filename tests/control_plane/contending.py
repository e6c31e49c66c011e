"""A process that takes a processor away from another one, and gives it back.

Who waits for whom is settled by real-time priorities, so the rest of the machine may be as busy as it likes: a process
that is ``favoured`` waits for nobody on its processor but for the one that is ``contending`` there, which wants the
processor only when the favoured one does: everybody else goes on meanwhile.
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
processor, priority, process = map(int, sys.argv[1:])
os.sched_setaffinity(0, {processor})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
state = os.open(f"/proc/{process}/task/{process}/stat", os.O_RDONLY)
print("contending", flush=True)
parent = os.getppid()
while os.getppid() == parent:
    time.sleep(0.0003)
    if b") R " in os.pread(state, 256, 0):
        until = time.perf_counter() + 0.0009
        while time.perf_counter() < until:
            pass
"""
"""takes three quarters of the time in which the first thread of a process wants its processor, in short stretches"""


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
def contending(process: psutil.Process, processor: int) -> Iterator[None]:
    """Inside, another process has the processor most of the time that the favoured one wants it."""
    command = [sys.executable, "-S", "-c", PROGRAM, str(processor), str(CONTENDING), str(process.pid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "contending\n"
            yield
        finally:
            other.kill()


def _set_all(process: psutil.Process, processors: set[int], policy: int, priority: int) -> None:
    for thread in Path(f"/proc/{process.pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), processors)
        os.sched_setscheduler(int(thread.name), policy, os.sched_param(priority))

"""How a process is asked to stop, tells that it is ready, and ends with its parent.

SIGTERM and SIGINT only set a flag: the main loop sees it at its next boundary, drains and exits 0.
"""

import ctypes
import os
import queue
import signal
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType

from infra.errors import ConfigError

INTERRUPTED = 130
"""exit status of a command that Ctrl-C ended"""
PR_SET_PDEATHSIG = 1
SUPERVISED = "FRESHET_SUPERVISED"
"""Environment variable a supervisor sets for its children: its own process id."""
STRETCH_SECONDS = 0.1
"""The longest time a signal can go unnoticed. A main loop that waits elsewhere (zmq's poll) keeps to the like of it."""


class Stop:
    """A request to stop, seen by the main loop at its next boundary. May be made in a signal handler."""

    def __init__(self) -> None:
        # Not an Event: its lock is not re-entrant, and a handler that interrupts wait() inside it would wait forever.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._requested = False
        self.reason = ""

    @property
    def requested(self) -> bool:
        return self._requested

    def request(self, reason: str) -> None:
        """The first reason given is the one that counts."""
        if not self._requested:
            self.reason = reason
            self._requested = True
            self._wake.put(None)

    def wait(self, seconds: float) -> bool:
        """Waits at most that long; returns whether a stop is requested.

        In short stretches: Python runs a handler only between its own instructions, so a signal that comes just before
        a wait begins is noticed when that wait ends.
        """
        until = time.monotonic() + seconds
        while not self._requested and (left := until - time.monotonic()) > 0:
            with suppress(queue.Empty):
                self._wake.get(timeout=min(left, STRETCH_SECONDS))
                self._wake.put(None)  # for whoever else waits
        return self._requested


@cache
def stop_on_signals() -> Stop:
    """Turns SIGTERM and SIGINT into a request to stop: the same one, however often this is called.

    Call it before anything slow is imported.
    """
    stop = Stop()

    def requested(number: int, _frame: FrameType | None) -> None:
        stop.request(signal.Signals(number).name)

    signal.signal(signal.SIGTERM, requested)
    signal.signal(signal.SIGINT, requested)
    return stop


def end_with_parent() -> None:
    """In a supervised process on Linux: asks to be killed should the supervisor die, so that it leaves no orphans.

    Without a supervisor nobody would stop the processes in order, so there is nothing to drain for. A process that
    an operator started is left alone: it may outlive the shell it came from.
    """
    supervisor = os.environ.get(SUPERVISED)
    if supervisor is None or sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(supervisor):  # it died before we asked
        os.kill(os.getpid(), signal.SIGKILL)


def write_whole(path: Path, text: str) -> None:
    """Writes a small file so that a reader sees all of it or nothing."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


def check_output(path: Path | None) -> None:
    """Raises ConfigError unless a file may be written there, so that hours of work do not end in a wrong path."""
    if path is None:
        return
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(
            f"cannot write {path}: expected the name of a file in a folder that exists and is writable; correct --json"
        )

"""How a process is asked to stop, ends, shows that it runs and where, claims its name, and writes small files.

SIGTERM, SIGINT and SIGHUP (a closed terminal) only set a flag: the main loop checks it between steps, drains and exits
0. Whoever starts a process with SIGHUP ignored, as nohup does, wants it to go on without a terminal.
"""

import atexit
import ctypes
import os
import queue
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import msgspec
import structlog

from infra.base.errors import ConfigError, NameTaken
from infra.base.files import make_private, writing_whole

INTERRUPTED = 130
"""exit status of a command that Ctrl-C ended"""
WRONG_SETTING = 2
"""exit status of a process that found a setting wrong: it would find it wrong again"""
START_ANEW = 75
"""exit status of a process that ended itself to be started anew, because it could not get back to a state it can go on
from"""
PR_SET_PDEATHSIG = 1
SUPERVISED = "FRESHET_SUPERVISED"
"""Environment variable a supervisor sets for its children: its own process id."""
TOUCH_SECONDS = 1.0
"""between two signs of life of a supervised process"""
CLAIM_SECONDS = 15.0
"""that a process waits for a name that another has: longer than it usually takes until one that ended is missed"""
CLAIM_GAP_SECONDS = 10.0
"""without a refusal, after which the next one counts as the first: a refused offer is repeated sooner"""
STRETCH_SECONDS = 0.1
"""The longest time a signal can go unnoticed. Main loops that wait elsewhere (zmq's poll) use a similar limit."""


BOOT = Path("/proc/sys/kernel/random/boot_id")
"""unlike that of any other machine, and the same in all of a machine's containers"""
PID_NAMESPACE = Path("/proc/self/ns/pid")
PlaceName = Annotated[str, msgspec.Meta(max_length=200)]


class ProcessPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a process runs; empty where the system does not say.

    A process number means something only to processes that count alike: those of a container have numbers of their own.
    """

    machine: PlaceName
    namespace: PlaceName
    """of process numbers"""
    pid: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


NOWHERE = ProcessPlace(machine="", namespace="", pid=0)


def own_place(boot: Path = BOOT, namespace: Path = PID_NAMESPACE) -> ProcessPlace:
    """Of this process."""
    try:
        return ProcessPlace(boot.read_text().strip(), str(namespace.readlink()), os.getpid())
    except OSError:
        return ProcessPlace("", "", os.getpid())


class Stop:
    """A request to stop, which the main loop checks between steps. May be made in a signal handler."""

    def __init__(self) -> None:
        # Not an Event: its lock is not re-entrant, so a handler that interrupts wait() while it is held would deadlock.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._requested = False
        self.reason = ""

    @property
    def requested(self) -> bool:
        return self._requested

    def request(self, reason: str) -> None:
        """Requests a stop; the first reason given is kept."""
        if not self._requested:
            self.reason = reason
            self._requested = True
            self._wake.put(None)

    def wait(self, seconds: float) -> bool:
        """Waits at most that long; returns whether a stop is requested.

        It waits in short stretches: Python runs a signal handler only between its own instructions, so a signal that
        arrives just before a wait is noticed only when that wait ends.
        """
        until = time.monotonic() + seconds
        while not self._requested and (left := until - time.monotonic()) > 0:
            with suppress(queue.Empty):
                self._wake.get(timeout=min(left, STRETCH_SECONDS))
                self._wake.put(None)  # for other threads that wait
        return self._requested


@cache
def stop_on_signals() -> Stop:
    """Turns SIGTERM, SIGINT and SIGHUP into a request to stop; every call returns the same one.

    Call it before anything slow is imported.
    """
    stop = Stop()

    def requested(number: int, _frame: FrameType | None) -> None:
        stop.request(signal.Signals(number).name)

    signal.signal(signal.SIGTERM, requested)
    signal.signal(signal.SIGINT, requested)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, requested)
    return stop


def interrupt_on_signals() -> None:
    """Has the first SIGTERM, SIGINT or SIGHUP end what is going on as Ctrl-C does; later ones do not disturb that end.

    For a command that ends processes of its own on its way out.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for each in caught:
            signal.signal(each, lambda *_: None)
        raise KeyboardInterrupt

    caught = {signal.SIGTERM, signal.SIGINT}
    caught |= {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else set()
    for each in caught:
        signal.signal(each, interrupt)


def is_supervised() -> bool:
    """Whether a supervisor started this process."""
    return SUPERVISED in os.environ


def end_with_parent() -> None:
    """In a supervised process on Linux: asks the kernel to kill this process if the supervisor dies.

    Without a supervisor nobody would stop the processes in order, so draining would be useless. A process that an
    operator started is not affected: it may outlive its shell.
    """
    supervisor = os.environ.get(SUPERVISED)
    if supervisor is None or sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(supervisor):  # the supervisor died before the call above
        os.kill(os.getpid(), signal.SIGKILL)


def end_process(status: int) -> NoReturn:
    """Ends this process as Python does, except that memory is left to the kernel.

    Threads that are no daemons are awaited, exit functions run, and output is flushed. Only taking modules down one by
    one is left out: with torch loaded that takes 0.4 s of a processor, and no thread runs meanwhile.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except (AttributeError, OSError, ValueError):  # there is none, or nobody reads it: Python has a status for that
        sys.exit(status)
    os._exit(status)


# ── signs of life ─────────────────────────────────────────────────────────────────────────────────────────────────────
def show_life(path: Path, every_seconds: float = TOUCH_SECONDS) -> None:
    """Starts a thread that touches this file as long as the process runs, whatever its other threads wait for.

    A process that was stopped (SIGSTOP) or hangs inside one call of a library touches it no more. One that ends in
    order removes it first: Python may take seconds to end, and runs no thread meanwhile.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    turn = threading.Lock()
    ending = threading.Event()

    def touch() -> None:
        while not ending.is_set():
            with turn, suppress(OSError):
                if not ending.is_set():
                    path.touch()
            ending.wait(every_seconds)

    def end() -> None:
        ending.set()
        with turn, suppress(OSError):
            path.unlink(missing_ok=True)

    atexit.register(end)
    threading.Thread(target=touch, name="alive", daemon=True).start()


class SignsOfLife:
    """How long another process has not touched its file, by the clock of the one that watches.

    Only changes are looked for, so it does not matter what either takes for the time of day.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._touched = 0
        self._since = 0.0

    def forget(self) -> None:
        """Removes what an earlier process of that name left."""
        self._path.unlink(missing_ok=True)
        self._touched = 0

    def excuse(self) -> None:
        """Counts from now on: whoever watches was away itself."""
        self._since = time.monotonic()

    def silent_seconds(self) -> float:
        """Since the last change that was seen; 0 as long as there is no file."""
        try:
            touched = self._path.stat().st_mtime_ns
        except OSError:
            return 0.0
        if touched != self._touched:
            self._touched = touched
            self._since = time.monotonic()
        return time.monotonic() - self._since


# ── names ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
class NameClaim:
    """What becomes of a process whose name, or number, another one has: it waits a little, because that one may just
    have ended, and then gives up. One that is supervised waits as long as it takes: it would only be started again."""

    def __init__(self, waits: bool = False) -> None:
        """waits: as long as it takes."""
        self._waits = waits
        self._since = self._last = -CLAIM_GAP_SECONDS
        """of the refusals in a row: the first and the newest, on the monotonic clock"""

    def refuse(self, reason: str) -> None:
        """The other process is alive; raises NameTaken once that has lasted too long."""
        now = time.monotonic()
        if now - self._last > CLAIM_GAP_SECONDS:
            self._since = now
            structlog.get_logger().warning("waits for its name", reason=reason)
        self._last = now
        if not self._waits and now - self._since > CLAIM_SECONDS:
            raise NameTaken(reason)


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def write_whole(path: Path, text: str, is_private: bool = False) -> None:
    """Writes a small file atomically: a reader sees all of it or nothing. is_private: only this user may read it."""
    with writing_whole(path) as temporary:
        if is_private:
            make_private(temporary)
        temporary.write_text(text)


def check_output(path: Path | None) -> None:
    """Raises ConfigError unless a file can be written there; called before the work that fills it."""
    if path is None:
        return
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(
            f"cannot write {path}; expected the name of a file in a folder that exists and is writable; correct --json"
        )

"""How a process is asked to stop, ends, shows that it runs and where, claims its name, and writes small files.

SIGTERM, SIGINT and SIGHUP (a closed terminal) only set a flag: the main loop checks it between steps, drains and exits
with 0. If a process is started with SIGHUP ignored, as nohup does, it keeps running without a terminal.
"""

import atexit
import ctypes
import os
import queue
import signal
import sys
import threading
import time
import weakref
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import msgspec

from infra.base.errors import ConfigError, NameTaken
from infra.base.files import writing_whole

INTERRUPTED = 130
"""Exit code of a command that was ended by Ctrl-C."""
WRONG_SETTING = 2
"""Exit code of a process that found a setting wrong: a restart would not help."""
START_ANEW = 75
"""Exit code of a process that asks to be restarted, because it could not return to a state from
which it can continue.
"""
PR_SET_PDEATHSIG = 1
SUPERVISED = "FRESHET_SUPERVISED"
"""Environment variable that a supervisor sets for its children: its own process id."""
FREE_MEMORY = ("numba.core.dispatcher", "torch.library")
"""Modules whose finalizers only free memory, that of kernels and operators."""
TOUCH_SECONDS = 1.0
"""Time between two signs of life of a supervised process."""
CLAIM_SECONDS = 15.0
"""How long a process waits for a name that another has: longer than it usually takes to notice that one has ended."""
CLAIM_GAP_SECONDS = 10.0
"""Time without a refusal after which the next one counts as the first: a refused offer is repeated sooner."""
STRETCH_SECONDS = 0.1
"""The longest time that a signal can go unnoticed. Main loops that wait elsewhere (zmq's poll) use a similar limit."""


BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Unique to the machine, and the same in all of its containers."""
PID_NAMESPACE = Path("/proc/self/ns/pid")
PlaceName = Annotated[str, msgspec.Meta(max_length=200)]


class ProcessPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a process runs; empty if the system does not say.

    Process numbers can be compared only within one namespace: those of a container have their own numbering.
    """

    machine: PlaceName
    namespace: PlaceName
    """Namespace of process numbers."""
    pid: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


NOWHERE = ProcessPlace(machine="", namespace="", pid=0)


def own_place(boot: Path = BOOT, namespace: Path = PID_NAMESPACE) -> ProcessPlace:
    """The place of this process."""
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


def stop_when_input_ends(stop: Stop) -> None:
    """Requests a stop once standard input is closed: when the program that holds its other end has ended, however."""

    def read() -> None:
        while os.read(0, 4096):  # not sys.stdin: its lock would be held in a process that is forked meanwhile
            pass
        stop.request("the end of its input")

    threading.Thread(target=read, name="input", daemon=True).start()


def interrupt_on_signals() -> None:
    """Makes the first SIGTERM, SIGINT or SIGHUP end the command as Ctrl-C does; later ones do not disturb that.

    For a command that ends its own processes on its way out.
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
    if supervisor is not None:
        die_with(int(supervisor))


def die_with(parent: int) -> None:
    """On Linux: asks the kernel to kill this process when its parent dies."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call above
        os.kill(os.getpid(), signal.SIGKILL)


def end_process(status: int) -> NoReturn:
    """Ends this process as Python does, except that memory is left to the kernel.

    Waits for non-daemon threads, runs exit functions, and flushes output. It only omits taking modules down one by one:
    with torch loaded that takes 0.4 s of a processor, and no thread runs meanwhile. It also omits finalizers that do
    the same, which takes 0.04 s in a process that was forked, most of them for copying the pages to be freed.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    for finalizer in weakref.finalize._registry.values():  # type: ignore[attr-defined]
        finalizer.atexit = finalizer.atexit and finalizer.func.__module__ not in FREE_MEMORY
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

    A process that was stopped (SIGSTOP) or hangs inside one call of a library does not touch it any more. One that ends
    cleanly removes it first: Python may take seconds to end, and runs no thread meanwhile.
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
    """How long another process has not touched its file, by the clock of the watching process.

    Only changes are noticed, so it does not matter what either takes for the time of day.
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
        """Restarts the count, because the watching process itself was suspended."""
        self._since = time.monotonic()

    def silent_seconds(self) -> float:
        """Time since the last change that was noticed; 0 as long as there is no file."""
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
    """What a process does if another one has its name or number: it waits a little, because that one may just have
    ended, and then gives up. A supervised process waits indefinitely: it would only be restarted.
    """

    def __init__(self, waits: bool = False) -> None:
        """waits: whether to wait indefinitely."""
        self._waits = waits
        self._since = self._last = -CLAIM_GAP_SECONDS
        """Times of the first and the newest of the refusals in a row, on the monotonic clock."""

    def refuse(self, reason: str) -> None:
        """Notes that the other process is alive; raises NameTaken once that has lasted too long."""
        now = time.monotonic()
        if now - self._last > CLAIM_GAP_SECONDS:
            self._since = now
            import structlog  # a quarter of a second: no command waits that long before it handles signals

            structlog.get_logger().warning("waits for its name", reason=reason)
        self._last = now
        if not self._waits and now - self._since > CLAIM_SECONDS:
            raise NameTaken(reason)


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def write_whole(path: Path, text: str, is_private: bool = False) -> None:
    """Writes a small file atomically: a reader sees all of it or nothing. is_private: only this user may read it."""
    with writing_whole(path, is_private) as temporary:
        temporary.write_text(text)


def check_output(path: Path | None) -> None:
    """Raises ConfigError unless a file can be written there; called before the work that fills it."""
    if path is None:
        return
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(
            f"cannot write {path}; expected the name of a file in a folder that exists and is writable; correct --json"
        )

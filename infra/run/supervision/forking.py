"""The nursery itself (``infra/run/supervision/nursery.py``): loads what the processes of a run need, and forks them.

It has one thread and no native one: nothing that is loaded here may start any before it is used. What a command needs
is loaded before its first process is forked, lightest first, so that a dispatcher does not wait for torch; the rest is
loaded while nothing is requested.
"""

import gc
import importlib
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache

import msgspec
import setproctitle

from infra.base.parts import module
from infra.base.process import SUPERVISED, end_with_parent
from infra.run.supervision.nursery import MESSAGE_BYTES, ProcessEnded, ProcessStarted, Signal, Wanted

LIGHT = tuple(map(module, ("infra.cli.main", "infra.cli.daemons", "dispatch.main", "ps.main", "ingest.opening")))
HEAVY = (*LIGHT, "torch", module("trainer.main"))
NEEDED = {"worker": HEAVY, "serve": (*HEAVY, module("serving.main"))}
"""What must be loaded before a process is forked; for other commands the light modules."""
AGAIN = {"api": (*LIGHT, module("api.main"))}
"""The same for a command that was forked before: the first API loads its own modules in parallel to the nursery, which
has to load torch for the workers; a replacement starts at once from the second time on.
"""


_unloadable: set[str] = set()
"""Modules whose import failed."""


class NurserySide:
    """The nursery's end of the socket, and its children."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._numbers: dict[int, int] = {}
        """Numbers of the children that have not ended, by process id."""
        self._forked: set[str] = set()
        """Commands that were forked before."""
        self._decoder = msgspec.msgpack.Decoder(Wanted | Signal)
        self._woken, waker = socket.socketpair()
        waker.setblocking(False)
        self._woken.setblocking(False)
        self._waker = waker

    def serve(self) -> bool:
        """Returns True in every child, and False when the supervisor has closed the socket."""
        signal.signal(signal.SIGCHLD, _ignore)
        signal.set_wakeup_fd(self._waker.fileno())
        while True:
            is_idle = not self._ready(0.0)
            if is_idle and load_next(HEAVY):
                continue
            ready = self._ready(None)
            if self._woken in ready:
                with suppress(BlockingIOError):
                    self._woken.recv(MESSAGE_BYTES)
            self._reap()
            if self._socket not in ready:
                continue
            body, files, _, _ = socket.recv_fds(self._socket, MESSAGE_BYTES, 1)
            if not body:
                return False
            message = self._decoder.decode(body)
            if isinstance(message, Signal):
                self._send(message)
            elif self._fork(message, *files):
                return True

    def _ready(self, timeout_seconds: float | None) -> list[socket.socket]:
        """Sockets on which something has arrived."""
        return select.select([self._socket, self._woken], [], [], timeout_seconds)[0]

    def _send(self, message: Signal) -> None:
        for pid in [pid for pid, number in self._numbers.items() if number == message.number]:
            with suppress(ProcessLookupError):
                os.kill(pid, message.signal)

    def _fork(self, wanted: Wanted, log: int) -> bool:
        """Returns whether this is the child."""
        command = wanted.arguments[0]
        needed = NEEDED.get(command, LIGHT)
        if command in self._forked:
            needed = AGAIN.get(command, needed)
        self._forked.add(command)
        while load_next(needed):
            pass
        prepare_kernels()
        gc.freeze()  # no child's garbage collector looks at what is there, so that its pages stay shared
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._leave()
            become(wanted, log, parent)
            return True
        os.close(log)
        self._numbers[pid] = wanted.number
        self._tell(ProcessStarted(wanted.number, pid))
        return False

    def _leave(self) -> None:
        """In the child: drops what belongs to the nursery alone."""
        gc.enable()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for connection in (self._socket, self._woken, self._waker):
            connection.close()

    def _reap(self) -> None:
        while self._numbers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            self._tell(ProcessEnded(self._numbers.pop(pid), os.waitstatus_to_exitcode(status)))

    def _tell(self, message: ProcessStarted | ProcessEnded) -> None:
        self._socket.send(msgspec.msgpack.encode(message))


def run_nursery(descriptor: int) -> bool:
    """Returns True in every child, whose command is then in ``sys.argv``, and False in the nursery, at its end.

    descriptor: of the socket to the supervisor.
    """
    end_with_parent()
    gc.disable()  # nothing that is loaded becomes garbage
    connection = socket.socket(fileno=descriptor)
    connection.setblocking(True)
    return NurserySide(connection).serve()


def load_next(modules: Sequence[str]) -> bool:
    """Imports the first that is not loaded yet; returns False if all are.

    If one cannot be imported, that is left to the process that needs it, which ends with the reason in its log: an
    error here would end the nursery, and all other processes of the run with it.
    """
    missing = next((name for name in modules if name not in sys.modules and name not in _unloadable), None)
    if missing is None:
        return False
    try:
        importlib.import_module(missing)
    except Exception:  # whatever a module of a broken installation raises
        _unloadable.add(missing)
    return True


@cache
def prepare_kernels() -> None:
    """Calls a kernel, for which numba prepares itself: half a second of a processor, here once for all children."""
    import numpy as np

    from ps.fingerprints import fingerprint

    none = np.empty(0, np.int64)
    fingerprint(none, none)


def become(wanted: Wanted, log: int, parent: int) -> None:
    """In the child: adopts the command's session, log, environment, arguments and name."""
    os.setsid()
    silence = os.open(os.devnull, os.O_RDONLY)
    for descriptor, target in ((silence, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, target)
    os.close(silence)
    os.close(log)
    os.environ.update(wanted.environment | {SUPERVISED: str(parent)})
    end_with_parent()
    sys.argv = ["freshet", *wanted.arguments]
    setproctitle.setproctitle(" ".join(sys.argv))


def _ignore(_number: int, _frame: object) -> None:
    """Only wakes ``select``."""

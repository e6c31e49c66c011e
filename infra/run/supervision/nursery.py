"""Processes that begin with everything imported: a nursery imports once, and forks.

Loading torch and the kernels takes seconds of a processor for every process of a run, and again for each that is
restarted while all others wait for it. A *nursery* is a process that loads them and does nothing else: no thread, no
socket but the one to its supervisor, no GPU. On request it forks, and the child becomes the requested command, with its
own session, log and environment. Children share the pages of what was loaded.

    supervisor ──► nursery      Wanted: a command to become; Signal: for one whose process id is not known yet
    nursery ──► supervisor      ProcessStarted, ProcessEnded; always in this order for one command

If the supervisor dies, the kernel kills the nursery, and if that dies, its children: everyone is tied to its parent. A
nursery that dies is replaced when the next process is requested. One that owes a process and does nothing was stopped,
or hangs, and is replaced too; one that works is not, since loading takes minutes on a busy machine.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import IO

import msgspec
import psutil
import structlog

from infra.base.files import open_log
from infra.base.parts import COMMAND
from infra.base.process import SUPERVISED
from infra.run.folder import as_path

NAME = "nursery"
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""For a library that starts threads when it is loaded: they would be missing in every child."""
MESSAGE_BYTES = 1 << 16
IDLE_SECONDS = 60.0
"""How long a nursery that owes a process may use no processor time."""
LOADING_SECONDS = 600.0
"""How long it may owe a process at most."""
PASS_SECONDS = 0.01
FORGOTTEN = -signal.SIGKILL
"""Status of a child of a nursery that died: the kernel killed it."""


class Wanted(msgspec.Struct, frozen=True, tag=True):
    """Requests a process; its log comes as a file descriptor."""

    number: int
    arguments: tuple[str, ...]
    """Arguments of the command ``freshet``."""
    environment: dict[str, str]
    """Variables added to the nursery's own."""


class Signal(msgspec.Struct, frozen=True, tag=True):
    """Asks for a signal to be sent to a process."""

    number: int
    signal: int


class ProcessStarted(msgspec.Struct, frozen=True, tag=True):
    """A process was started."""

    number: int
    pid: int


class ProcessEnded(msgspec.Struct, frozen=True, tag=True):
    """A process has ended."""

    number: int
    status: int
    """Exit code; negative: the signal that ended it."""


class Forked:
    """A process that a nursery started or is about to start, with what a supervisor needs of ``subprocess.Popen``."""

    def __init__(self, nursery: "Nursery", number: int) -> None:
        self._nursery = nursery
        self._number = number
        self.asked = time.monotonic()
        self.pid = 0
        """Process id; 0: not known yet."""
        self.returncode: int | None = None

    def poll(self) -> int | None:
        self._nursery.listen()
        return self.returncode

    def wait(self) -> int:
        while (status := self.poll()) is None:
            time.sleep(PASS_SECONDS)
        return status

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def send_signal(self, number: int) -> None:
        """Sends a signal to this process only."""
        if self.poll() is None:
            self._nursery.signal(self._number, self.pid, number)

    def kill_group(self) -> None:
        """Kills it and whatever it started in its group; if it is not there yet, as soon as it is."""
        self.poll()
        if self.pid:
            kill_group(self.pid)
        else:
            self._nursery.forget(self._number)


class Nursery:
    """The supervisor's end; the process is started when it is first needed."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        """folder: of the run; environment: added to this process's, before anything is loaded."""
        self._folder = folder
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._numbers = count(1)
        self._children: dict[int, Forked] = {}
        """Children that have not ended."""
        self._used_seconds = 0.0
        """Processor time that the nursery had used when it was last seen to work."""
        self._worked = 0.0
        """When that was."""
        self._decoder = msgspec.msgpack.Decoder(ProcessStarted | ProcessEnded)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def can_start(self, argv: Sequence[str]) -> bool:
        """Whether a command is one of Freshet's own."""
        return tuple(argv[: len(COMMAND)]) == COMMAND

    def start(self, argv: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> Forked:
        """Starts a command, which may not have begun when this returns. Raises OSError if there can be no nursery."""
        self.listen()
        if self._socket is None:
            self._open()
        assert self._socket is not None
        child = Forked(self, next(self._numbers))
        wanted = Wanted(child._number, tuple(argv[len(COMMAND) :]), dict(environment))
        self._children[child._number] = child
        self._worked = child.asked
        try:
            socket.send_fds(self._socket, [msgspec.msgpack.encode(wanted)], [log.fileno()])
        except OSError:
            self.close()
        return child

    def listen(self) -> None:
        """Handles the nursery's messages, without waiting."""
        while self._socket is not None:
            try:
                body = self._socket.recv(MESSAGE_BYTES)
            except BlockingIOError:
                break
            except OSError:
                body = b""
            if not body:
                self.close()
                return
            self._note_change(self._decoder.decode(body))
        asked = [child.asked for child in self._children.values() if not child.pid]
        if asked and self._is_stuck(min(asked)):
            structlog.get_logger("supervisor").error("the nursery does not answer; it is replaced", pid=self.pid)
            self.close()

    def signal(self, number: int, pid: int, which: int) -> None:
        """Sends a signal to a child, or has the nursery send it if its process id is not known here."""
        if pid:
            with suppress(ProcessLookupError):  # it has ended, and the nursery is about to tell
                os.kill(pid, which)
        elif self._socket is not None:
            try:
                self._socket.send(msgspec.msgpack.encode(Signal(number, which)))
            except OSError:
                self.close()

    def forget(self, number: int) -> None:
        """Counts a child that is not there yet as ended: nobody waits until the nursery has started and killed it."""
        self.signal(number, 0, signal.SIGKILL)
        if (child := self._children.pop(number, None)) is not None:
            child.returncode = FORGOTTEN

    def _is_stuck(self, asked: float) -> bool:
        """Whether the nursery, which has owed a process since then, will not start it."""
        assert self._process is not None
        used_seconds = sum(psutil.Process(self._process.pid).cpu_times()[:2])
        now = time.monotonic()
        if used_seconds != self._used_seconds:
            self._used_seconds = used_seconds
            self._worked = now
        return now - self._worked > IDLE_SECONDS or now - asked > LOADING_SECONDS

    def _note_change(self, message: ProcessStarted | ProcessEnded) -> None:
        child = self._children.get(message.number)
        if child is None:  # it was killed before it was there
            return
        if isinstance(message, ProcessStarted):
            child.pid = message.pid
        else:
            child.returncode = message.status
            del self._children[message.number]

    def _open(self) -> None:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        env = {**os.environ, **ONE_THREAD, **self._environment, SUPERVISED: str(os.getpid())}
        argv = [*COMMAND, NAME, str(there.fileno()), "--run", as_path(self._folder)]
        try:
            with open_log(self._folder / "logs" / f"{NAME}.log") as log:
                self._process = subprocess.Popen(
                    argv,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[there.fileno()],
                    start_new_session=True,
                )
        except OSError:
            here.close()
            raise
        finally:
            there.close()
        here.setblocking(False)
        self._socket = here

    def close(self) -> None:
        """Ends the nursery, and its children with it. It may be used again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        for child in self._children.values():
            if child.pid:
                kill_group(child.pid)
            child.returncode = FORGOTTEN
        self._children.clear()


def nursery_in(folder: Path, environment: Mapping[str, str]) -> Nursery | None:
    """A nursery for the run in a folder; None if processes cannot be forked, or not be
    distinguished by their titles.
    """
    is_able = sys.platform == "linux" and not any(character.isspace() for character in str(folder))
    return Nursery(folder, environment) if is_able else None


def as_started(cmdline: Sequence[str]) -> list[str]:
    """The command line of a process, even if it was forked, in which case it is one string."""
    words = [word for word in cmdline if word]
    return words[0].split(" ") if len(words) == 1 else words


def kill_group(pid: int) -> None:
    """Kills a process and whatever it started in its group."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)

"""Real processes of the command ``freshet`` that need not load torch and other modules: they are forked with them.

The suite starts hundreds of processes, and loading modules was a third to a half of their cost. So each worker of
pytest has one process with all modules loaded, which has one thread and does nothing but fork. Where Python would fork
and execute a command that begins with ``COMMAND``, that process is asked instead, by pytest and by the processes forked
from it; so a run's own nursery is forked, too:

    1. the requesting process becomes a *subreaper* for a moment: orphans among its descendants become its children
    2. it sends arguments, environment, folder and files over a Unix socket
    3. the loaded process forks a child, which forks a grandchild and ends; the grandchild is now a child of 1
    4. the grandchild sets its session, files, folder, environment, where Python finds modules, arguments and name,
       reports that, and begins

The result is an ordinary process: a child of the process that requested it, with one thread, and with nothing of the
loaded process but its modules. These commands are executed as usual: those whose environment affects how modules are
loaded (``LOADING``), those that begin as another user or with a function of their own, and all within ``executing``.

A shell executes what it finds on its path. ``commands_for_shells`` puts a program there that asks for a process in the
same way, passes signals on to it, and ends as it does (``tests/asking.py``). It cannot become the parent of that
process: the intermediate one of step 3 remains its parent, and is called its *guardian*.
"""

import ctypes
import fcntl
import gc
import hashlib
import importlib
import io
import os
import runpy
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil
import setproctitle

from tests.asking import MESSAGE_BYTES, NAME

MODULE = "infra.cli.entry"
ROOT = Path(__file__).resolve().parents[1]
COMMAND = [sys.executable, "-m", MODULE]
SCRIPT = Path(sys.executable).parent / "freshet"
"""The installed command."""
MODULES = (
    *("infra.cli.main", "infra.cli.daemons", "dispatch.main", "trainer.main", "serving.main", "api.main"),
    *("infra.run.cluster", "infra.run.demo", "infra.run.resume", "infra.run.display", "infra.run.own_broker"),
    *("infra.run.agent.running", "infra.cli.steer.client", "infra.verify.run", "infra.chaos.main"),
    *("dispatch.checkpoints.survey", "serving.snapshots.choosing", "ingest.kafka.topics", "ingest.main"),
)
"""Modules that commands load, but for pyarrow, which starts a thread."""
LOADING = ("HOME", "LD_", "MKL_", "NUMBA", "OMP_", "PYTHON", "XDG_")
"""Prefixes of variables that matter while modules are loaded, and that no module sets itself."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""OpenBLAS would start threads when it is loaded, which would be missing in every child."""
STARTING = ("up", "demo", "chaos", "verify", "replay", "bench", "agent", "runs")
"""Commands that start processes; each gets its own loaded child."""
MOST_FILES = 16
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PEER = struct.Struct("3i")
"""Process, user and group at the other end of a socket."""


def loading(variables: Mapping[str, str]) -> str:
    """A digest of the variables that matter while modules are loaded."""
    kept = {name: value for name, value in variables.items() if name.startswith(LOADING) and name != "PYTHONPATH"}
    return hashlib.sha256(repr(sorted(kept.items())).encode(errors="surrogateescape")).hexdigest()


EXECUTE = subprocess._fork_exec  # type: ignore[attr-defined]
ENVIRONMENT = os.environ | ONE_THREAD
"""Environment of the loaded process; tests change that of pytest."""
DIGEST = loading(ENVIRONMENT)
_libc = ctypes.CDLL(None, use_errno=True)
_local = threading.local()
_asking = threading.Lock()
_adopting = threading.Event()
"""Whether this process is a subreaper all the time."""
_loaded_children: dict[int, subprocess.Popen[bytes] | None] = {}
"""Loaded children by the id of their parent: this process, or one that it was forked from."""


class Wish(NamedTuple):
    """The arguments of the function with which ``subprocess`` forks and executes; the same in Python 3.11 to 3.13."""

    arguments: list[Any]
    executables: tuple[bytes, ...]
    close_files: bool
    kept_files: tuple[int, ...]
    folder: Any
    environment: list[bytes] | None
    stdin: int
    stdin_here: int
    stdout_here: int
    stdout: int
    stderr_here: int
    stderr: int
    errors_here: int
    errors: int
    """File in which the child reports that it could not execute."""
    restore_signals: bool
    own_session: bool
    process_group: int
    group: Any
    groups: Any
    user: Any
    umask: int
    function: Any
    use_vfork: bool

    @property
    def start(self) -> "Start | None":
        """The request for this process; None if it is no command of Freshet's."""
        words = [os.fsdecode(each) for each in self.arguments]
        program = next((path for path in map(os.fsdecode, self.executables) if os.access(path, os.X_OK)), "")
        if program != str(SCRIPT):
            if words[: len(COMMAND)] != COMMAND:
                return None
            program = MODULE
        return Start(
            program=program,
            arguments=words[1:] if program != MODULE else words[len(COMMAND) :],
            environment=self.variables,
            folder=str(Path(os.fsdecode(self.folder or ".")).absolute()),
            files=list(self.files),
            own_session=self.own_session,
        )

    @property
    def files(self) -> dict[int, int]:
        """The numbers that files should have, and those that they have here."""
        standard = dict(enumerate((self.stdin, self.stdout, self.stderr)))
        files = {number: number if given < 0 else given for number, given in standard.items()}
        return files | {number: number for number in self.kept_files if number != self.errors}

    @property
    def variables(self) -> dict[str, str]:
        if self.environment is None:
            return dict(os.environ)
        return dict(os.fsdecode(each).split("=", 1) for each in self.environment)

    @property
    def is_plain(self) -> bool:
        """Whether it requests nothing but a command, files, a folder, an environment and a session."""
        identity = (self.group, self.groups, self.user, self.function)
        return self.close_files and self.umask < 0 and self.process_group < 0 and identity == (None,) * 4


class Start(msgspec.Struct, frozen=True):
    """A request for a process. Its files are sent with the message."""

    program: str
    """``MODULE`` or the path of ``SCRIPT``."""
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    files: list[int]
    """The numbers that the files should have."""
    own_session: bool
    guardians: str = ""
    """Folder in which the guardian of a shell's process leaves a file with its id as name; empty: there is none."""

    @property
    def can_be_forked(self) -> bool:
        """Whether the command would load its modules as the loaded process did.

        One with a space in an argument is not forked: its title, in which arguments are joined, would be ambiguous.
        """
        return loading(self.environment) == DIGEST and all(
            word and not any(map(str.isspace, word)) for word in self.arguments
        )

    @property
    def starts_others(self) -> bool:
        """Whether the command itself starts processes."""
        return bool(self.arguments) and self.arguments[0] in STARTING


# ── the requesting process ────────────────────────────────────────────────────────────────────────────────────────────
def install() -> None:
    """Makes this process fork Freshet's commands from now on; the loaded process is started when it is first needed.

    On Linux only: other systems have no subreapers.
    """
    if sys.platform != "linux":
        return
    subprocess._fork_exec = fork_or_execute  # type: ignore[attr-defined]


@contextmanager
def executing() -> Iterator[None]:
    """Commands that this thread starts in the context are executed, not forked."""
    _local.executes = True
    try:
        yield
    finally:
        _local.executes = False


def fork_or_execute(*arguments: Any) -> int:
    """Replaces ``_posixsubprocess.fork_exec``; returns the process's id."""
    wish = Wish(*arguments)
    start = wish.start
    if getattr(_local, "executes", False) or not wish.is_plain or start is None or not start.can_be_forked:
        return int(EXECUTE(*arguments))
    load_first()
    return ask(start, list(wish.files.values()))


def ask(start: Start, files: list[int]) -> int:
    """Requests a process; returns its id."""
    with _asking, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(f"\0{NAME}{os.getpid()}")
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(connection, [msgspec.json.encode(start)], files)
            answer = connection.recv(MESSAGE_BYTES)
        finally:
            _libc.prctl(PR_SET_CHILD_SUBREAPER, int(_adopting.is_set()), 0, 0, 0)
    if not answer:
        raise OSError(f"no process could be forked for {start.arguments}")
    return int(answer)


@contextmanager
def commands_for_shells(folder: Path) -> Iterator[Path]:
    """Yields a folder with a program ``freshet`` for the path of shells; it is made in the folder given.

    Guardians become children of this process, so that what their processes cost is counted with the test.
    """
    commands, guardians = folder / "commands", folder / "guardians"
    commands.mkdir()
    program = commands / SCRIPT.name
    if sys.platform != "linux":
        program.symlink_to(SCRIPT)
        yield commands
        return
    guardians.mkdir()
    asking = [sys.executable, "-IS", ROOT / "tests" / "asking.py", os.getpid(), SCRIPT, guardians]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, asking))} "$@"\n')
    program.chmod(0o755)
    load_first()
    _adopting.set()
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield commands
    finally:
        _adopting.clear()
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        for guardian in [int(file.name) for file in guardians.iterdir()]:
            if not psutil.Process(guardian).children():  # otherwise a test has failed and left a process
                os.waitpid(guardian, 0)


def load_first() -> None:
    """Starts the loaded child of this process, unless it has one."""
    if os.getpid() in _loaded_children:
        return
    with listen() as listener, executing():
        _loaded_children[os.getpid()] = subprocess.Popen(
            [sys.executable, "-m", "tests.preloaded", str(listener.fileno())],
            cwd=ROOT,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
        )


# ── the loaded process ────────────────────────────────────────────────────────────────────────────────────────────────
def load() -> None:
    """Loads the modules that all processes need; no thread may be started."""
    gc.disable()
    for module in MODULES:
        importlib.import_module(module)
    from infra.run.warm_up import warm_up_directory, warm_up_others

    warm_up_others()
    warm_up_directory()
    setproctitle.setproctitle("freshet-tests preloaded")  # before the environment changes, which holds the title
    gc.freeze()  # the garbage collectors of children do not touch these objects, so their pages stay shared
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a module that was loaded has started a thread"


def serve(listener: socket.socket) -> None:
    """Forks whatever is requested; returns only in the forked processes."""
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is meant for pytest
    while True:
        connection, _ = listener.accept()
        message, files, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, MOST_FILES)
        wanted_by, _, _ = PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
        start = msgspec.json.decode(message, type=Start)
        child = os.fork() if start.can_be_forked else None
        if child == 0:
            if os.fork():
                os._exit(0)
            listener.close()
            if start.guardians:
                guard(start, connection)
            else:
                _await_parent(wanted_by)
            listener = listen()
            if not start.starts_others or os.fork():
                listener.close()
                begin(start, files, connection)
                return
            _end_with_parent()  # the loaded child of the new process; it serves that process from now on
        elif child is not None:
            os.waitpid(child, 0)
        for file in files:
            os.close(file)
        connection.close()


def guard(start: Start, connection: socket.socket) -> None:
    """Forks; returns in the child only. The guardian reports the child's status to whoever asked, and ends."""
    Path(start.guardians, str(os.getpid())).touch()
    child = os.fork()
    if child == 0:
        return
    setproctitle.setproctitle("freshet-tests guardian")
    _, status = os.waitpid(child, 0)
    with suppress(OSError):  # nobody waits for it any more
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def listen() -> socket.socket:
    """The socket at which this process, or a loaded child of it, receives requests for processes."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"\0{NAME}{os.getpid()}")
    listener.listen(64)
    return listener


def _await_parent(parent: int) -> None:
    """Waits until the intermediate process has ended."""
    while os.getppid() != parent:
        if not Path(f"/proc/{parent}").exists():
            os._exit(1)
        time.sleep(0.001)


def _end_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def begin(start: Start, files: list[int], connection: socket.socket) -> None:
    """In the new process: sets up what was requested, and reports that."""
    if start.own_session:
        os.setsid()
    first_spare = max(start.files) + 1
    *spare, answer = [fcntl.fcntl(file, fcntl.F_DUPFD, first_spare) for file in (*files, connection.fileno())]
    connection.close()
    for file in files:
        os.close(file)
    for file, number in zip(spare, start.files, strict=True):
        os.dup2(file, number)
        os.close(file)
    os.chdir(start.folder)
    setproctitle.setproctitle(" ".join(["freshet", *start.arguments]))
    os.environ.clear()
    os.environ.update(start.environment)
    find_modules_in(start.environment.get("PYTHONPATH", ""))
    if start.starts_others:
        install()
        _loaded_children[os.getpid()] = None
    _libc.prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    open_standard_files()
    gc.enable()
    os.write(answer, str(os.getpid()).encode())
    os.close(answer)
    sys.argv = [start.program, *start.arguments]


def find_modules_in(folders: str) -> None:
    """Lets Python find modules in the folders of a PYTHONPATH, as at its start: after the folder of the command.

    What is loaded already is not looked for again, so none of these folders may have another version of it.
    """
    sys.path[1:1] = [folder for folder in folders.split(os.pathsep) if folder and folder not in sys.path]


def open_standard_files() -> None:
    """Opens the standard files as Python does at its start."""
    writes_through = bool(os.environ.get("PYTHONUNBUFFERED"))
    for name, number in (("stdout", 1), ("stderr", 2)):
        file = io.FileIO(number, "w", closefd=False)
        text = io.TextIOWrapper(
            io.BufferedWriter(file),
            encoding=getattr(sys, name).encoding,
            errors=getattr(sys, name).errors,
            line_buffering=name == "stderr" or file.isatty(),
            write_through=writes_through,
        )
        setattr(sys, name, text)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "r", closefd=False)), encoding=sys.stdin.encoding)


if __name__ == "__main__":
    load()
    serve(socket.socket(fileno=int(sys.argv[1])))
    if sys.argv[0] == MODULE:
        runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")

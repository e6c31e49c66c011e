"""The decorator of every numba kernel, and the cache of compiled kernels.

A compiled kernel is one file, named by everything that it depends on: the sources of its module and of all our modules
that this one imports, the versions of Python and numba, numba's settings (bounds checks, optimization), the types of
its arguments and the processor. A change of any of these leads to another file, so that no stale code can run; and a
checkout with the same sources finds what another one has compiled.

    ~/.cache/freshet/kernels/MODULE-STAMP/FUNCTION-LINE.TYPES.nbc     (or below XDG_CACHE_HOME)

numba's own cache numbers its files and keeps the numbers in an index. Two processes that compile the same kernel for
different types at the same time can both take the first number, and one of them later loads code that was compiled for
the types of the other. Names that follow from the content cannot be mixed up: processes that compile the same thing
write the same file, each in one step.

Compiling everything that a process needs takes a minute of a busy processor. A process therefore does it before its
work, in ``compile_ahead``, which reports its progress to ``LISTENERS``, and stops before the next kernel once the
process is asked to stop.

Some kernels divide a loop among threads (``threaded``). These are numba's own, which need no GIL; the process says how
many with ``use_threads``. With one, which is the default, such a kernel is compiled without them.
"""

import fcntl
import hashlib
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import Any, Literal, TypeVar

import numba
from numba import njit
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, NullCache, _CacheLocator

from infra.base.parts import PREFIX, ROOT, unprefixed

Kernel = TypeVar("Kernel", bound=Callable[..., Any])
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
WAIT_SECONDS = 60.0
"""How long a process waits for another one that compiles the same kernel."""
POLL_SECONDS = 0.02
KEEP_SECONDS = 30 * 86_400.0
"""Kernels that no process has used for this long are removed when their successor is compiled."""
IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)|import[ \t]+([^\n]+))", re.MULTILINE
)


@cache
def imported_files(file: Path, root: Path) -> frozenset[Path]:
    """The files below the root that a file imports directly."""
    names: set[str] = set()
    for module, members, modules in IMPORT.findall(file.read_text()):
        words = re.findall(r"[\w.]+", members or modules)
        names |= {module, *(f"{module}.{word}" for word in words)} if module else set(words)
    paths = [unprefixed(name).replace(".", "/") for name in names]
    candidates = (root / f"{path}{end}" for path in paths for end in (".py", "/__init__.py"))
    return frozenset(candidate for candidate in candidates if candidate.is_file())


def all_sources(file: Path, root: Path) -> list[Path]:
    """A file and everything below the root that it imports, directly or not."""
    found = {file}
    open_ends = [file]
    while open_ends:
        new = imported_files(open_ends.pop(), root) - found
        found |= new
        open_ends += new
    return sorted(found)


@cache
def stamp(file: Path, root: Path) -> str:
    """Changes with everything except types and processor that the compiled kernels of a file depend on."""
    settings = OPTIONS, numba.config.BOUNDSCHECK, str(numba.config.OPT)  # type: ignore[attr-defined]
    # a kernel's file names its module, which has another name in a wheel
    digest = hashlib.blake2b(f"{sys.version} {numba.__version__} {settings}{PREFIX}".encode(), digest_size=8)
    for source in all_sources(file, root):
        if source == Path(__file__):  # what of it counts is in the settings
            continue
        digest.update(f"\0{source.relative_to(root)}\0".encode() + source.read_bytes())
    return digest.hexdigest()


@cache
def cache_folder() -> Path | None:
    """The user's cache folder, or else the package's own; None if neither is writable, by this user alone."""
    candidates = [ROOT / "infra" / "__pycache__"]
    with suppress(RuntimeError):  # a user without a home
        candidates.insert(0, Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "freshet")
    for candidate in candidates:
        folder = candidate / "kernels"
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if is_private(folder):
                return folder
    return None


def is_private(folder: Path) -> bool:
    """Whether only this user can write there: files in the folder are executed."""
    status = folder.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022 and os.access(folder, os.W_OK | os.X_OK)


@cache
def module_folder(file: Path, root: Path, keep: Path) -> Path:
    """The folder for the kernels of a file; notes the use, and removes versions that nobody has used for long."""
    name = ".".join(file.relative_to(root).with_suffix("").parts)
    folder = keep / f"{name}-{stamp(file, root)}"
    if not folder.is_dir():
        for other in keep.glob(f"{name}-*"):
            with suppress(OSError):  # another process may be removing it
                if other.stat().st_mtime < time.time() - KEEP_SECONDS:
                    shutil.rmtree(other, ignore_errors=True)
        folder.mkdir(exist_ok=True)
    with suppress(OSError):
        os.utime(folder)
    return folder


# ── compiling ahead ───────────────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Compilation:
    """The progress of a process that compiles its kernels ahead."""

    ready: int
    """Kernels that were found or compiled."""
    most: int
    """Most kernels that there can be: all loaded ones of these packages; few processes need every one."""
    state: Literal["under way", "complete", "stopped"]
    """complete: all needed ones are ready; stopped: some are not, because the process is to stop or failed."""


LOADED: set[str] = set()
"""Every kernel of this process by module and name, compiled or not."""
LISTENERS: list[Callable[[Compilation], None]] = []
"""Each is called for every kernel that is about to be compiled ahead, and once when no more will be; not at all if all
of them are found.
"""


class CompilationStopped(BaseException):
    """Raised instead of compiling the next kernel. Not an Exception, because numba takes those for errors in the
    kernel.
    """


class Ahead:
    """What one thread compiles ahead."""

    def __init__(self, packages: Sequence[str], is_stopped: Callable[[], bool]) -> None:
        self._prefixes = tuple(f"{package}." for package in packages)
        self.is_stopped = is_stopped
        self._ready: set[str] = set()
        self._is_told = False
        self.locked: list[tuple[KernelFiles, Path]] = []
        """Files locked so far; most have been unlocked since."""

    def begin(self) -> None:
        """Called before a kernel is compiled; raises CompilationStopped if it must not be."""
        if self.is_stopped():
            raise CompilationStopped
        self._is_told = True
        self._report_progress("under way")

    def end(self, kernel_name: str) -> None:
        """Called when a kernel was found or compiled, for one combination of types."""
        if kernel_name.startswith(self._prefixes):
            self._ready.add(kernel_name)

    def close(self, is_complete: bool) -> None:
        for files, path in self.locked:
            files.unlock(path)
        if self._is_told:
            self._report_progress("complete" if is_complete else "stopped")

    def _report_progress(self, state: Literal["under way", "complete", "stopped"]) -> None:
        most = sum(name.startswith(self._prefixes) for name in LOADED)
        for listener in LISTENERS:
            listener(Compilation(len(self._ready), most, state))


AHEAD: ContextVar[Ahead | None] = ContextVar("AHEAD", default=None)
"""What this thread compiles ahead; None: it compiles a kernel that it needs at once, and nothing stops that."""


def compile_ahead(warm_up: Callable[[], None], packages: Sequence[str], is_stopped: Callable[[], bool]) -> bool:
    """Calls ``warm_up``, which calls the kernels of some packages; returns whether it completed.

    It does not if the process is to stop meanwhile: the current kernel is then the last one. What was compiled is kept.
    """
    ahead = Ahead(packages, is_stopped)
    is_complete = False
    token = AHEAD.set(ahead)
    try:
        warm_up()
        is_complete = True
    except CompilationStopped:
        pass
    finally:
        AHEAD.reset(token)
        ahead.close(is_complete)
    return is_complete


# ── what is kept ──────────────────────────────────────────────────────────────────────────────────────────────────────
class KernelLocator(_CacheLocator):
    """Tells numba the folder of a kernel's module."""

    def __init__(self, file: str, line: int, folder: Path) -> None:
        self._py_file = file
        self._line = line
        self._folder = folder  # numba reads the first, for a warning

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> "KernelLocator | None":
        """None if nothing can be cached: no folder, or a kernel that is not in a file of ours."""
        keep = cache_folder()
        path = Path(file)
        if keep is None or not path.is_relative_to(ROOT) or not path.is_file():
            return None
        try:
            return cls(file, function.__code__.co_firstlineno, module_folder(path, ROOT, keep))
        except OSError:
            return None

    def ensure_cache_path(self) -> None:
        """Does nothing: the folder was created with the locator."""

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return self._folder.name

    def get_disambiguator(self) -> str:
        return str(self._line)


class KernelFiles(IndexDataCacheFile):
    """One file for the code of each combination of types, and no index.

    A process that finds no file locks its name until it has compiled it; others that want the same wait for it. A
    kernel is locked before those that it calls, so no two processes can wait for each other.
    """

    def __init__(self, folder: str, name: str, stamp: str) -> None:
        super().__init__(folder, name, stamp)  # type: ignore[no-untyped-call]
        self._folder = Path(folder)
        self._name = name
        self._locks: dict[Path, int] = {}

    def load(self, key: tuple[Any, ...]) -> Any:
        """The code; None if this process has to compile it."""
        path = self._path(key)
        ahead = AHEAD.get()
        if not path.exists():
            if ahead is not None:
                ahead.begin()
            self._lock(path, ahead)
            if ahead is not None:
                ahead.locked.append((self, path))
        if not path.exists():
            return None
        self.unlock(path)
        return self._load_data(path.name)  # type: ignore[no-untyped-call]

    def save(self, key: tuple[Any, ...], code: Any) -> None:
        path = self._path(key)
        with suppress(OSError):  # a full disk: the next process compiles it again
            self._save_data(path.name, code)  # type: ignore[no-untyped-call]
        self.unlock(path)

    def _lock(self, path: Path, ahead: Ahead | None) -> None:
        """Waits for another process that compiles it, but not forever: compiling twice is better than never."""
        if path in self._locks:  # an earlier attempt to compile it failed
            return
        with suppress(OSError):  # the folder is gone, or belongs to somebody else
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._locks[path] = lock = os.open(path.with_suffix(".lock"), flags, 0o644)
            give_up = time.monotonic() + WAIT_SECONDS
            while time.monotonic() < give_up and not path.exists() and not _try_lock(lock):
                if ahead is not None and ahead.is_stopped():
                    os.close(self._locks.pop(path))  # the file is that of whoever has the lock
                    raise CompilationStopped
                time.sleep(POLL_SECONDS)

    def unlock(self, path: Path) -> None:
        """Releases the lock: a waiting process sees that the kernel exists, or that it has to compile it."""
        if (lock := self._locks.pop(path, None)) is not None:
            path.with_suffix(".lock").unlink(missing_ok=True)
            os.close(lock)

    def _path(self, key: tuple[Any, ...]) -> Path:
        digest = hashlib.blake2b(repr(key).encode(), digest_size=12).hexdigest()
        return self._folder / f"{self._name}.{digest}.nbc"


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class KernelCacheImpl(CompileResultCacheImpl):
    """Makes numba use only our locator."""

    _locator_classes: list[Any] = [KernelLocator]  # noqa: RUF012 (numba declares it so)


class KernelCache(FunctionCache):
    """numba's cache of one kernel, with our folders and names."""

    _impl_class = KernelCacheImpl

    def __init__(self, function: Callable[..., Any], form: str) -> None:
        """form: what distinguishes kernels that are compiled from the same function."""
        super().__init__(function)  # type: ignore[no-untyped-call]
        name = self._impl.filename_base + form
        self._cache_file = KernelFiles(self.cache_path, name, self._impl.locator.get_source_stamp())
        self._kernel_name = name_of(function)

    def load_overload(self, signature: Any, context: Any) -> Any:
        found = super().load_overload(signature, context)  # type: ignore[no-untyped-call]
        if found is not None and (ahead := AHEAD.get()) is not None:
            ahead.end(self._kernel_name)
        return found

    def save_overload(self, signature: Any, code: Any) -> None:
        super().save_overload(signature, code)  # type: ignore[no-untyped-call]
        if (ahead := AHEAD.get()) is not None:
            ahead.end(self._kernel_name)


class NothingKept(NullCache):
    """The cache of a kernel that is compiled in every process, because there is no place to keep it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._kernel_name = name_of(function)

    def load_overload(self, _signature: Any, _context: Any) -> None:
        if (ahead := AHEAD.get()) is not None:
            ahead.begin()

    def save_overload(self, _signature: Any, _code: Any) -> None:
        if (ahead := AHEAD.get()) is not None:
            ahead.end(self._kernel_name)


def name_of(function: Callable[..., Any]) -> str:
    return unprefixed(f"{function.__module__}.{function.__qualname__}")


def kernel(function: Kernel) -> Kernel:
    """Compiles a function of plain arrays once for each combination of types; it releases the GIL."""
    return _compiled(function)


def _compiled(function: Kernel, form: str = "", **more: Any) -> Kernel:
    options: dict[str, Any] = OPTIONS | more
    compiled: Any = njit(**options)(function)
    try:
        compiled._cache = KernelCache(function, form)
    except RuntimeError:  # numba found nowhere to keep it
        compiled._cache = NothingKept(function)
    LOADED.add(name_of(function))
    return compiled  # type: ignore[no-any-return]


# ── threads ───────────────────────────────────────────────────────────────────────────────────────────────────────────
LAYERS = ["omp", "tbb", "workqueue"]
"""Where numba's threads come from: the first that is installed. The last always is, but its threads wake slowly."""
SPINS = "10000"
"""How often a thread of the first looks for work before it sleeps, about until the next kernel of a decision comes. By
default they would keep cores busy that others need.
"""
MOST_BY_DEFAULT = 8
"""Threads beyond which a decision for a few workers became slower."""
FEWEST_OF_A_RANGE = 1024
"""Things that a thread does in about the time for which it is woken."""
numba.config.THREADING_LAYER_PRIORITY = LAYERS  # type: ignore[attr-defined]


class _Threads:
    """How many threads the kernels of this process use, and who uses them now: some layers end the process if two of
    its threads do at the same time.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Back to one: a forked process has none of the others."""
        self.number = 1
        self.lock = threading.Lock()


_THREADS = _Threads()
os.register_at_fork(after_in_child=_THREADS.forget)


def use_threads(number: int, taken_cores: int = 0) -> int:
    """Sets among how many threads kernels divide their work, at most as many as there are cores; returns how many.

    number: 0 means half of the cores that are not taken by others, at most MOST_BY_DEFAULT, or one if other threads
    would take long to wake. If one of several threads must wait for a core, all of them wait.
    """
    cores = int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
    _THREADS.number = max(1, min(number or min((cores - taken_cores) // 2, MOST_BY_DEFAULT), cores))
    if _THREADS.number > 1:
        _start_threads(_THREADS.number)
        if not number and numba.threading_layer() == LAYERS[-1]:  # type: ignore[attr-defined]
            _THREADS.number = 1
    return _THREADS.number


def _start_threads(number: int) -> None:
    """Starts them, with an environment that only their library sees, and only once."""
    before = os.environ.get("GOMP_SPINCOUNT")
    os.environ["GOMP_SPINCOUNT"] = before or SPINS
    numba.set_num_threads(number)
    if before is None:
        del os.environ["GOMP_SPINCOUNT"]


def threaded(function: Kernel) -> Kernel:
    """A kernel, to be called from Python only, whose loop over ``prange`` is divided among threads. Its first argument
    is the number of passes.

    No two passes may write to the same place. The results are then the same for any number of threads.
    """
    alone = kernel(function)
    divided = _compiled(function, ".threads", parallel=True)

    @wraps(function)
    def call(passes: int, *arguments: Any) -> Any:
        if passes <= 1 or _THREADS.number == 1:
            return alone(passes, *arguments)
        with _THREADS.lock:
            numba.set_num_threads(min(passes, _THREADS.number))
            return divided(passes, *arguments)

    return call  # type: ignore[return-value]


def threads() -> int:
    """Among how many threads kernels divide their work."""
    return _THREADS.number


def ranges_for(size: int) -> int:
    """Into how many ranges a loop over so many things is divided: one for each thread, unless they are few."""
    return max(1, min(_THREADS.number, size // FEWEST_OF_A_RANGE))


@kernel
def range_of(k: int, ranges: int, size: int) -> tuple[int, int]:
    """The k-th of so many ranges of about equal size: its first number and its end."""
    return size * k // ranges, size * (k + 1) // ranges

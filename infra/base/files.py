"""Files that a run needs: who may write them, and how refusals by the system are explained."""

import errno
import fcntl
import io
import os
import re
import shutil
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TextIO
from uuid import uuid4

from infra.base.errors import FileUnusable, FreshetError

REMEDIES = {
    errno.ENOSPC: "expected room on its disk; make room there, or use a folder on another disk",
    errno.EDQUOT: "expected room within the disk quota; make room there, or use a folder on another disk",
    errno.EROFS: "expected a disk that can be written; use a folder on another one, or mount it for writing",
    errno.EACCES: "expected permission to use it; change its owner or mode, or use another folder",
    errno.EPERM: "expected permission to use it; change its owner or mode, or use another folder",
    errno.EIO: "expected a disk that works; check it, and use a folder on another one",
    errno.EISDIR: "expected a file and found a folder; move the folder away",
    errno.EFBIG: "expected to be allowed files of that size; raise the limit ('ulimit -f')",
}
"""What was expected and what to do, by error number."""
LOCK_TIMES = 5
"""How often a lock is tried: another process may just be checking whether it is held."""
LOCK_SECONDS = 0.002
"""Pause between two tries."""
PRIVATE = 0o600
LITTLE_BYTES = 64 << 10
"""A disk with less room than this counts as full."""
SOCKETS = "freshet-sockets-"
"""Prefix of the names of folders of Unix sockets."""
STARTING_SECONDS = 60.0
"""How long such a folder must be unchanged before it counts as abandoned: a socket that has just been bound refuses
connections until its process listens, too.
"""
LONGEST_FOLDER = 60
"""Most characters; a longer folder for temporary files leaves too little of a socket's 107."""


def remedy(error: OSError) -> str:
    """What was expected and what to do, as the end of a message."""
    return REMEDIES.get(error.errno or 0, "expected a path that exists and is writable; correct it")


def is_full(error: OSError) -> bool:
    """Whether the disk has no room, so that a retry may succeed later."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def refusal(error: OSError, path: Path | str | None = None) -> str:
    """A message about a file or folder that cannot be used; without a path, the one that the error names."""
    where = error.filename if path is None else path
    return f"cannot use{'' if where is None else f' {where}'}: {error.strerror or error}; {remedy(error)}"


@contextmanager
def naming(path: Path, kind: type[FreshetError] = FileUnusable) -> Iterator[None]:
    """Turns an error of the system into one of ours that names the file, which a failed write alone does not."""
    try:
        yield
    except OSError as error:
        raise kind(refusal(error, error.filename or path)) from error


@contextmanager
def writing_whole(path: Path, is_private: bool = False) -> Iterator[Path]:
    """Yields a file to write that then replaces this one: a reader sees the whole new one, or the old one.

    is_private: only this user may read it. A process that is killed leaves what it was writing; the next one that
    writes this path removes it. Raises FileUnusable, which names the path, and leaves nothing behind if it cannot be
    written.
    """
    try:
        _remove_abandoned_writes(path)
        temporary, lock = _begin_write(path, PRIVATE if is_private else 0o666)
        try:
            yield temporary
            temporary.replace(path)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            os.close(lock)
    except OSError as error:
        raise FileUnusable(refusal(error, path)) from error


def _begin_write(path: Path, mode: int) -> tuple[Path, int]:
    """Creates the file that will replace this one, locked while it is being written."""
    while True:
        temporary = path.with_name(f".{path.name}.{uuid4().hex}")
        lock = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink:
            return temporary, lock
        os.close(lock)  # another process took it for abandoned before it was locked


def _remove_abandoned_writes(path: Path) -> None:
    named = re.compile(re.escape(f".{path.name}.") + "[0-9a-f]{32}")
    for file in [file for file in path.parent.iterdir() if named.fullmatch(file.name)]:
        with suppress(OSError), file.open("rb") as opened:  # BlockingIOError: it is being written
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.unlink()


def make_private(path: Path) -> None:
    """Creates a file that only this user may read and write; an existing file of this user gets that mode."""
    os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, PRIVATE))
    found = path.stat()
    if found.st_uid == os.geteuid() and found.st_mode & 0o077:
        path.chmod(PRIVATE)


def describe_room(folder: Path) -> str:
    """Why nothing can be written in this folder, if its disk is the reason; otherwise empty."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return ""
    free_bytes = found.f_bavail * found.f_frsize
    if found.f_flag & os.ST_RDONLY:
        return f"the disk of {folder} is read-only; {REMEDIES[errno.EROFS]}"
    if free_bytes < LITTLE_BYTES:
        return f"the disk of {folder} is full ({free_bytes} bytes free); {REMEDIES[errno.ENOSPC]}"
    return ""


def try_lock(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> int | None:
    """Opens a file and locks it for this process, until it is closed; None if another one holds the lock."""
    file = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        for _ in range(LOCK_TIMES - 1):
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file
            time.sleep(LOCK_SECONDS)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    except OSError:
        os.close(file)
        raise
    return file


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file. Raises FileUnusable."""
    with naming(path):
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
    return False


# ── Unix sockets ──────────────────────────────────────────────────────────────────────────────────────────────────────
@contextmanager
def socket_folder() -> Iterator[Path]:
    """Creates a folder for Unix sockets that only this user can enter, and removes it afterwards.

    It is outside of the run's folder, whose path may be too long for a socket. What killed processes of this user left
    there is removed.
    """
    usual = tempfile.gettempdir()
    place = Path(usual if len(usual) <= LONGEST_FOLDER else "/tmp")
    remove_abandoned(place)
    with naming(place):
        folder = Path(tempfile.mkdtemp(prefix=SOCKETS, dir=place))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned(place: Path) -> None:
    """Removes the folders of this user's sockets on which nobody listens."""
    for found in place.glob(f"{SOCKETS}*"):
        with suppress(OSError):  # somebody else removes it, too
            status = found.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and _is_abandoned(found):
                shutil.rmtree(found, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    is_old = folder.stat().st_mtime < time.time() - STARTING_SECONDS
    return is_old and not any(_is_listened_to(path) for path in folder.iterdir())


def _is_listened_to(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.setblocking(False)  # one that is stopped, or has much to do, is there
        try:
            caller.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True


# ── logs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
class LogFile(io.FileIO):
    """An append-only log. What cannot be written is lost, with a warning: a failing log does not end a run."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "a")
        self._path = path

    def write(self, text: Any, /) -> int:
        size = memoryview(text).nbytes
        try:
            super().write(text)
        except OSError as error:
            _warn(self._path, refusal(error, self._path))
        return size


def open_log(path: Path) -> LogFile:
    """Opens a log for appending, or a null device if the log cannot be opened."""
    try:
        return LogFile(path)
    except OSError as error:
        _warn(path, refusal(error, path))
        return LogFile(Path(os.devnull))


def text_log(path: Path) -> TextIO:
    """The same for text, a line at a time."""
    return io.TextIOWrapper(io.BufferedWriter(open_log(path)), encoding="utf-8", line_buffering=True)


@cache
def _warn(path: Path, why: str) -> None:
    """Reports on stderr, once, that a log is incomplete."""
    with suppress(OSError):
        sys.stderr.write(f"freshet: the log {path} is incomplete, and the run continues: {why}\n")

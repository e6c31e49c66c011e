"""Framing of everything that is appended to files here: length, CRC-32C, body.

A crash can leave the last frames of a file torn; that is distinguished from damage in the middle, which is never
repaired silently. A body is never empty, so zeros after a power cut are not a frame.
"""

import fcntl
import os
import struct
from pathlib import Path

from crc32c import crc32c

from ingest.errors import LogBusy, LogCorrupt, LogError

HEAD = struct.Struct("<II")
"""body length, CRC-32C of the body"""
MAX_BODY = 1 << 30


def frame(body: bytes) -> bytes:
    return HEAD.pack(len(body), crc32c(body)) + body


def next_frame(view: bytes | memoryview, at: int) -> int | None:
    """Where the frame at ``at`` ends, or None if no whole and valid frame starts there."""
    if at + HEAD.size > len(view):
        return None
    length, checksum = HEAD.unpack_from(view, at)
    end: int = at + HEAD.size + length
    if not 0 < length <= MAX_BODY or end > len(view) or crc32c(view[at + HEAD.size : end]) != checksum:
        return None
    return end


def count_frames(view: bytes | memoryview, at: int = 0) -> tuple[int, int]:
    """(whole frames from ``at`` on, where the last of them ends)."""
    frames = 0
    while (end := next_frame(view, at)) is not None:
        frames, at = frames + 1, end
    return frames, at


def is_torn(view: bytes | memoryview, at: int) -> bool:
    """Whether the broken frame at ``at`` looks like a crash while appending: no valid frame follows it."""
    if at + HEAD.size > len(view):
        return True
    length, _ = HEAD.unpack_from(view, at)
    after = at + HEAD.size + length
    return after >= len(view) or next_frame(view, after) is None


def read_frames(path: Path) -> tuple[list[bytes], int]:
    """(bodies of all whole frames, where they end); a torn tail is left out, damage before it is an error."""
    view = path.read_bytes() if path.exists() else b""
    bodies, at = [], 0
    while (end := next_frame(view, at)) is not None:
        bodies.append(view[at + HEAD.size : end])
        at = end
    if at < len(view) and not is_torn(view, at):
        raise LogCorrupt(
            f"{path} is damaged at byte {at} of {len(view)}: checksum mismatch with valid frames after it; "
            "expected an unchanged file; restore it from a copy"
        )
    return bodies, at


def lock(path: Path) -> int:
    """Opens a file for one writer; the lock ends with the process."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        raise LogBusy(
            f"cannot write {path}: another process holds its lock; expected one writer; stop the other"
        ) from error
    return file


def write_durably(file: int, content: bytes, at: int) -> int:
    """Writes at a place, makes it durable, returns the bytes written; a failure leaves the file as it was."""
    written = 0
    try:
        while written < len(content):
            written += os.pwrite(file, memoryview(content)[written:], at + written)
        sync_content(file)
    except OSError as error:
        os.ftruncate(file, at)
        raise LogError(
            f"cannot append {len(content)} bytes: {error}; expected room on the disk; make room and start again"
        ) from error
    return written


def sync_content(file: int) -> None:
    """Makes a file's content durable; macOS has only fsync, which includes its times."""
    (os.fdatasync if hasattr(os, "fdatasync") else os.fsync)(file)


def truncate(file: int, end: int) -> None:
    """Cuts a file and makes the cut durable."""
    if os.fstat(file).st_size != end:
        os.ftruncate(file, end)
        os.fsync(file)


def sync_folder(folder: Path) -> None:
    """Makes names created or removed in a folder durable."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)

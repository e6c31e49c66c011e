"""Frames for everything that is appended to files, so that a crash during an append can be told from damage.

    length | CRC-32C of the length | CRC-32C of the body, continued from the one before | body, whose last byte is END

A wrong length is detected by its own checksum before it is used. What follows the last whole frame is a *torn tail* if
one interrupted append explains it: the beginning of a frame, followed by nothing, or by the zeros that a filesystem may
show in place of bytes that a power failure kept from being written. A torn tail was never acknowledged and is removed.
Everything else is *damage* and is never repaired silently: a broken frame with others after it, a header whose checksum
is wrong, and also a last frame that is complete except for its checksum, because END (never zero) shows that its end
was written. A disk that writes the end of an append before its beginning can leave such a frame after a power failure;
that, too, is reported and left to a person, since a changed bit looks the same.
"""

import os
import struct
from functools import lru_cache
from pathlib import Path

from crc32c import crc32c

from infra.base.files import naming, refusal, try_lock
from ingest.errors import LogBusy, LogCorrupt, LogError

HEAD = struct.Struct("<III")
"""Length of the body, checksum of the length, checksum of the body."""
NUMBER = struct.Struct("<I")
END = b"\xff"
MAX_BODY = 1 << 30


def frame(content: bytes) -> bytes:
    body = content + END
    length = len(body)
    length_checksum = checksum_of(length)
    return HEAD.pack(length, length_checksum, crc32c(body, length_checksum)) + body


@lru_cache(maxsize=4096)
def checksum_of(length: int) -> int:
    """The checksum of a length; cached, because records have similar lengths."""
    return int(crc32c(NUMBER.pack(length)))


def is_length(length: int, checksum: int) -> bool:
    """Whether a length matches its checksum."""
    return 0 < length <= MAX_BODY and checksum_of(length) == checksum


def frame_bytes(view: bytes | memoryview, at: int = 0) -> int | None:
    """Bytes of the frame at ``at``, by its header alone; None if no valid header starts there."""
    if at + HEAD.size > len(view):
        return None
    length, checksum, _ = HEAD.unpack_from(view, at)
    return HEAD.size + length if is_length(length, checksum) else None


def next_frame(view: bytes | memoryview, at: int) -> int | None:
    """Where the frame at ``at`` ends, or None if no whole and valid frame starts there."""
    size = frame_bytes(view, at)
    if size is None or at + size > len(view):
        return None
    _, length_checksum, checksum = HEAD.unpack_from(view, at)
    end = at + size
    return end if crc32c(view[at + HEAD.size : end], length_checksum) == checksum else None


def count_frames(view: bytes | memoryview, at: int = 0) -> tuple[int, int]:
    """The number of whole frames from ``at`` on, and where the last of them ends."""
    frames = 0
    while (end := next_frame(view, at)) is not None:
        frames, at = frames + 1, end
    return frames, at


def is_torn(view: bytes | memoryview, at: int) -> bool:
    """Whether what follows the last whole frame is one interrupted append."""
    written = bytes(view[at:]).rstrip(b"\0")
    length = int.from_bytes(written[: NUMBER.size], "little")
    if length > MAX_BODY:
        return False
    checksum = NUMBER.pack(checksum_of(length))
    return len(written) < HEAD.size + length and checksum.startswith(written[NUMBER.size : 2 * NUMBER.size])


def read_frames(path: Path, opening: bytes) -> tuple[list[bytes], int]:
    """The content of all whole frames, and where they end; 0 if the file does not even have its opening bytes yet.

    A torn tail is ignored; damage, and a file with another opening, is an error.
    """
    with naming(path, LogError):
        try:
            view = path.read_bytes()
        except FileNotFoundError:
            view = b""
    if not view.startswith(opening):
        if opening.startswith(view.rstrip(b"\0")):  # a crash while the file was made
            return [], 0
        raise wrong_opening(path, view[: len(opening)], opening)
    bodies = []
    at = len(opening)
    while (end := next_frame(view, at)) is not None:
        bodies.append(view[at + HEAD.size : end - len(END)])
        at = end
    if at < len(view) and not is_torn(view, at):
        raise LogCorrupt(
            f"{path} is damaged at byte {at} of {len(view)}: length or checksum is wrong, and no append that was cut "
            "short explains it; expected an unchanged file; restore it from a copy"
        )
    return bodies, at


def wrong_opening(path: Path, found: bytes, expected: bytes) -> LogCorrupt:
    return LogCorrupt(
        f"{path} is damaged at byte 0, or another version of Freshet wrote it: it begins with {found!r}; expected "
        f"{expected!r}; restore it from a copy, read it with the version that wrote it, or use a new folder"
    )


def lock(path: Path) -> int:
    """Opens a file for one writer; the lock ends with the process."""
    with naming(path, LogError):
        file = try_lock(path)
    if file is None:
        raise LogBusy(f"cannot write {path}: another process holds its lock; expected one writer; stop the other")
    return file


def write_durably(file: int, content: bytes, at: int, path: Path) -> int:
    """Writes at a place, durably, and returns the bytes written; a failure leaves the file as it was."""
    written = 0
    try:
        while written < len(content):
            written += os.pwrite(file, memoryview(content)[written:], at + written)
        sync_content(file)
    except OSError as error:
        _cut_back(file, at)
        raise LogError(f"{len(content)} bytes were not appended: {refusal(error, path)}") from error
    return written


def _cut_back(file: int, at: int) -> None:
    """Removes what a failed append has written; if even that fails, the next writer finds a torn tail."""
    try:
        os.ftruncate(file, at)
    except OSError:
        return


def sync_content(file: int) -> None:
    """Makes a file's content durable; macOS only has fsync, which includes the file's times."""
    (os.fdatasync if hasattr(os, "fdatasync") else os.fsync)(file)


def truncate(file: int, end: int) -> None:
    """Truncates a file, durably."""
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

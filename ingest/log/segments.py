"""The files of one partition: segments of framed records, and the high-water mark that limits readers.

A segment is named by the offset of its first record. Its header repeats that offset and names the segment before it and
the first one that retention had left, so that a missing segment is detected.

The mark says how far records are durable. It is one small checksummed write in place, so readers in other processes see
an old or a new mark, never half of one. It is synced when it is created and when a segment is begun, but not with every
append: after a power failure it may be old, and the writer finds the durable records after it when it opens.
"""

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from infra.base.files import naming
from ingest.errors import LogCorrupt, LogError
from ingest.log.frames import (
    END,
    HEAD,
    MAX_BODY,
    NUMBER,
    checksum_of,
    frame_bytes,
    is_length,
    sync_folder,
    wrong_opening,
)
from ingest.streams.sink import Entry
from ingest.streams.source import Record

RECORD = struct.Struct("<qi")
"""Unix milliseconds, length of the key or -1 for none; then key and payload."""
FRAMED_RECORD = struct.Struct("<IIIqi")
"""HEAD and RECORD, which are read together."""
MARK = struct.Struct("<4sIQQQQ")
MARK_MAGIC = b"FLG2"
SEGMENT_MAGIC = b"FRESHLG2"
SEGMENT = struct.Struct("<8sQQQI")
"""Magic, the numbers of SegmentHead, CRC-32C of everything before it."""


class SegmentHead(NamedTuple):
    """The header of a segment."""

    first: int
    """Offset of its first record."""
    previous: int
    """First offset of the segment before it; its own if there was none."""
    retained: int
    """First retained offset when the segment was begun."""


class HighWaterMark(NamedTuple):
    """From which record on a partition is retained, and how far it is durable."""

    first: int
    """First retained offset."""
    end: int
    """Offset after the last durable record."""
    segment: int
    """First offset of the segment that holds the end."""
    durable_bytes: int
    """Durable bytes of that segment."""


# ── the mark ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def mark_path(folder: Path) -> Path:
    return folder / "mark"


def write_mark(file: int, mark: HighWaterMark, folder: Path) -> None:
    body = struct.pack("<QQQQ", *mark)
    with naming(mark_path(folder), LogError):
        os.pwrite(file, MARK.pack(MARK_MAGIC, crc32c(body), *mark), 0)


def read_mark(file: int, folder: Path) -> HighWaterMark | None:
    """The mark, or None if there is none yet. If a write is in progress, it is read again."""
    for _ in range(1000):
        with naming(mark_path(folder), LogError):
            content = os.pread(file, MARK.size, 0)
        if not content.rstrip(b"\0"):
            return None
        if len(content) == MARK.size:
            magic, checksum, *numbers = MARK.unpack(content)
            if magic == MARK_MAGIC and crc32c(content[8:]) == checksum:
                return HighWaterMark(*numbers)
    raise LogCorrupt(
        f"high-water mark {mark_path(folder)} is damaged at byte 0, or another version of Freshet wrote it: "
        f"{content!r}; expected {MARK.size} checksummed bytes that begin with {MARK_MAGIC!r}; of this version, remove "
        "the file, and the next writer rebuilds it from the segments; of another, use a new folder"
    )


def lost_mark(folder: Path) -> LogCorrupt:
    return LogCorrupt(
        f"high-water mark {mark_path(folder)} is missing or empty, though the partition has records; expected the "
        "file; restore it from a copy, or open the topic for writing ('freshet produce --limit 0'), which rebuilds it"
    )


# ── segments ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def segment_path(folder: Path, first: int) -> Path:
    return folder / f"{first:020d}.log"


def segment_firsts(folder: Path) -> list[int]:
    """First offsets of the existing segments, in order."""
    return sorted(int(path.stem) for path in folder.glob("*.log") if path.stem.isdigit())


def create_segment(folder: Path, head: SegmentHead) -> int:
    """Creates a segment without records, opens it, and returns once both the file and its name are durable."""
    path = segment_path(folder, head.first)
    with naming(path, LogError):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(file, encode_head(head), 0)
            os.fsync(file)
            sync_folder(folder)
        except OSError:
            os.close(file)
            raise
    return file


def encode_head(head: SegmentHead) -> bytes:
    content = SEGMENT.pack(SEGMENT_MAGIC, *head, 0)[: -NUMBER.size]
    return content + NUMBER.pack(crc32c(content))


def check_head(content: bytes, path: Path) -> SegmentHead:
    """The header of a segment, from its first bytes."""
    head = _decode_head(content, path)
    if head is not None:
        return head
    if not content.startswith(SEGMENT_MAGIC):
        raise wrong_opening(path, content[: len(SEGMENT_MAGIC)], SEGMENT_MAGIC)
    raise LogCorrupt(
        f"{path} is damaged at byte 0: its header is {content[: SEGMENT.size]!r}; expected {SEGMENT.size} checksummed "
        "bytes for a segment of that name; restore the file from a copy"
    )


def is_unfinished(content: bytes, path: Path) -> bool:
    """Whether a file with these first bytes is a segment that was being created when a crash came."""
    written = content.rstrip(b"\0")
    is_begun = len(content) <= SEGMENT.size and SEGMENT_MAGIC.startswith(written[: len(SEGMENT_MAGIC)])
    return is_begun and _decode_head(content, path) is None


def _decode_head(content: bytes, path: Path) -> SegmentHead | None:
    if len(content) < SEGMENT.size:
        return None
    _, *numbers, checksum = SEGMENT.unpack_from(content)
    is_whole = crc32c(content[: SEGMENT.size - NUMBER.size]) == checksum
    return SegmentHead(*numbers) if is_whole and numbers[0] == int(path.stem) else None


# ── records ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def encode_records(entries: Sequence[Entry], time_ms: int) -> bytes:
    """One frame per record (``ingest.log.frames.frame``, repeated here to save a call for each)."""
    plain = RECORD.pack(time_ms, -1)
    parts: list[bytes] = []
    for key, payload in entries:
        head = plain if key is None else RECORD.pack(time_ms, len(key)) + key
        body = head + payload + END
        length = len(body)
        if length > MAX_BODY:
            raise LogError(f"cannot append a record of {length} bytes; expected {MAX_BODY} at most; split it")
        length_checksum = checksum_of(length)
        parts += (HEAD.pack(length, length_checksum, crc32c(body, length_checksum)), body)
    return b"".join(parts)


def decode_records(view: bytes, offset: int, path: Path, place: int) -> tuple[list[Record], int]:
    """The records of a stretch of a segment, and the bytes they take; a frame that the view truncates is ignored.

    path and place (the byte of the file at which the view begins) are for messages.
    """
    records: list[Record] = []
    at = 0
    size = len(view)
    body = memoryview(view)
    head = HEAD.size
    start = FRAMED_RECORD.size
    last = len(END)
    while at + start < size:
        length, length_checksum, checksum, time_ms, key_length = FRAMED_RECORD.unpack_from(view, at)
        end = at + head + length
        # The checksum of the body covers that of the length, so a length is checked by itself only where it is used.
        if end > size and is_length(length, length_checksum):
            break
        # without a copy, and with the GIL released for large bodies: training goes on meanwhile
        if (
            not at + start < end <= size
            or crc32c(body[at + head : end], length_checksum, gil_release_mode=0) != checksum
        ):
            raise damaged(path, place + at, offset)
        split = at + start
        key = None
        if key_length >= 0:
            key, split = view[split : split + key_length], split + key_length
        records.append(Record(offset, key, view[split : end - last], time_ms))
        offset, at = offset + 1, end
    return records, at


def skip_records(view: bytes, count: int) -> tuple[int, int]:
    """The number of records and bytes skipped: at most count whole frames, by their headers alone."""
    at = 0
    skipped = 0
    while skipped < count and (size := frame_bytes(view, at)) is not None and at + size <= len(view):
        at, skipped = at + size, skipped + 1
    return skipped, at


# ── damage ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def damaged(path: Path, place: int, offset: int) -> LogCorrupt:
    return LogCorrupt(
        f"{path} is damaged at byte {place} (record {offset}): length or checksum is wrong though it was durable; "
        "expected an unchanged file; restore the file from a copy"
    )


def missing(path: Path) -> LogCorrupt:
    return LogCorrupt(
        f"segment {path} is missing, and retention has not removed it; expected the file; restore it from a copy"
    )


def cut_short(path: Path, place: int, offset: int) -> LogCorrupt:
    return LogCorrupt(
        f"{path} ends at byte {place}, before record {offset}, and no segment begins with that record; expected "
        f"{segment_path(path.parent, offset).name} beside it, or a longer file; restore the one that is missing or cut"
    )

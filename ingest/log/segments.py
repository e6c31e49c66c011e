"""The files of one partition: segments of framed records, and the high-water mark that readers obey.

A segment is named by the offset of its first record. The mark says how far records are durable; it is one small
checksummed write in place, so readers of other processes see an old or a new mark, never half of one. It is not
synced itself: after a power cut it may be old, and the writer finds the durable records after it when it opens.
"""

import os
import struct
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from ingest.errors import LogCorrupt
from ingest.log.frames import HEAD, frame
from ingest.streams.source import Record

RECORD = struct.Struct("<qi")
"""unix milliseconds, length of the key or -1 for none; then key and payload"""
MARK = struct.Struct("<4sIQQQQ")
MAGIC = b"FLG1"


class HighWaterMark(NamedTuple):
    """What a partition holds: from which record on, and how far it is durable."""

    first: int
    """first retained offset"""
    end: int
    """offset after the last durable record"""
    segment: int
    """first offset of the segment that holds the end"""
    durable_bytes: int
    """of that segment"""


def write_mark(file: int, mark: HighWaterMark) -> None:
    body = struct.pack("<QQQQ", *mark)
    os.pwrite(file, MARK.pack(MAGIC, crc32c(body), *mark), 0)


def read_mark(file: int) -> HighWaterMark | None:
    """The mark, or None if there is none yet. A write in progress is read again."""
    for _ in range(1000):
        content = os.pread(file, MARK.size, 0)
        if not content:
            return None
        if len(content) == MARK.size:
            magic, checksum, *numbers = MARK.unpack(content)
            if magic == MAGIC and crc32c(content[8:]) == checksum:
                return HighWaterMark(*numbers)
    raise LogCorrupt(
        f"high-water mark is damaged: {content!r}; expected {MARK.size} checksummed bytes; "
        "remove the partition's file 'mark' and open it for writing to rebuild it"
    )


def segment_path(folder: Path, first: int) -> Path:
    return folder / f"{first:020d}.log"


def segment_firsts(folder: Path) -> list[int]:
    """First offsets of the segments there are, in order."""
    return sorted(int(path.stem) for path in folder.glob("*.log") if path.stem.isdigit())


def encode_record(key: bytes | None, payload: bytes, time_ms: int) -> bytes:
    head = RECORD.pack(time_ms, -1 if key is None else len(key))
    return frame(b"".join((head, key or b"", payload)))


def decode_records(view: bytes, offset: int, path: Path, place: int) -> tuple[list[Record], int]:
    """(records of a stretch of a segment, bytes they take); a frame cut off by the end of the view is left out.

    path and place (the byte of the file at which the view begins) are for messages.
    """
    records: list[Record] = []
    at, size, start = 0, len(view), HEAD.size
    while at + start <= size:
        length, checksum = HEAD.unpack_from(view, at)
        end = at + start + length
        if end > size and length >= RECORD.size:
            break
        body = view[at + start : end]
        if length < RECORD.size or crc32c(body) != checksum:
            raise damaged(path, place + at, offset)
        time_ms, key_length = RECORD.unpack_from(body)
        split = RECORD.size + max(key_length, 0)
        key = None if key_length < 0 else body[RECORD.size : split]
        records.append(Record(offset, key, body[split:], time_ms))
        offset, at = offset + 1, end
    return records, at


def skip_records(view: bytes, count: int) -> tuple[int, int]:
    """(records skipped, bytes skipped) of at most count whole frames, by their lengths alone."""
    at, skipped = 0, 0
    while skipped < count and at + HEAD.size <= len(view):
        length, _ = HEAD.unpack_from(view, at)
        if at + HEAD.size + length > len(view):
            break
        at, skipped = at + HEAD.size + length, skipped + 1
    return skipped, at


def damaged(path: Path, place: int, offset: int) -> LogCorrupt:
    return LogCorrupt(
        f"{path} is damaged at byte {place} (record {offset}): length or checksum is wrong though it was durable; "
        "expected an unchanged file; restore the file from a copy"
    )

"""Reads one partition of the embedded log while its writer may be appending."""

import os
from bisect import bisect_right
from pathlib import Path

from infra.base.files import naming
from ingest.errors import LogCorrupt, LogError, OffsetOutOfRange
from ingest.log.frames import HEAD, frame_bytes
from ingest.log.segments import (
    SEGMENT,
    HighWaterMark,
    check_head,
    cut_short,
    damaged,
    decode_records,
    lost_mark,
    mark_path,
    missing,
    read_mark,
    segment_firsts,
    segment_path,
    skip_records,
)
from ingest.streams.source import Record

SKIP_BYTES = 1 << 20
"""Bytes read at a time when records are only skipped."""


def has_begun(folder: Path) -> bool:
    """Whether a partition can be read: its writer has created the mark. Raises LogCorrupt if the
    mark was lost since.
    """
    with naming(mark_path(folder), LogError):
        if mark_path(folder).exists() and mark_path(folder).stat().st_size:
            return True
    _check_no_records(folder)
    return False


def _check_no_records(folder: Path) -> None:
    """Raises LogCorrupt if a partition without a mark has records."""
    with naming(folder, LogError):
        if any(segment_path(folder, first).stat().st_size > SEGMENT.size for first in segment_firsts(folder)):
            raise lost_mark(folder)


class PartitionReader:
    """Remembers places that it has read, so that continuing from there needs no search."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._firsts: list[int] = []
        self._segment = -1
        self._file = -1
        self._known: list[tuple[int, int]] = []
        """(offset, byte) pairs of the open segment, ascending."""
        self._next = (-1, 0)
        """Where the last read ended."""
        try:
            self._mark_file = os.open(mark_path(folder), os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise LogError(
                f"cannot read partition {folder}: {error}; expected an existing partition; start its producer"
            ) from error

    def mark(self) -> HighWaterMark:
        found = read_mark(self._mark_file, self.folder)
        if found is None:
            _check_no_records(self.folder)
            return HighWaterMark(0, 0, 0, SEGMENT.size)
        return found

    def read(self, offset: int, max_bytes: int) -> list[Record]:
        mark = self.mark()
        if not mark.first <= offset <= mark.end:
            raise self._out_of_range(offset, mark)
        if offset == mark.end:
            return []
        with naming(self.folder, LogError):
            limit, until = self._enter(offset, mark)
            place = self._find(offset, limit)
            records, used = self._records(offset, place, min(max_bytes, limit - place))
            if not records:
                records, used = self._records(offset, place, self._frame_bytes(offset, place, limit))
        if offset + len(records) > until:
            raise self._too_many(until)
        self._next = (offset + len(records), place + used)
        self._remember(*self._next)
        return records

    def close(self) -> None:
        for file in (self._file, self._mark_file):
            if file >= 0:
                os.close(file)
        self._file = self._mark_file = -1

    @property
    def _path(self) -> Path:
        """The path of the open segment."""
        return segment_path(self.folder, self._segment)

    def _records(self, offset: int, place: int, size: int) -> tuple[list[Record], int]:
        return decode_records(os.pread(self._file, size, place), offset, self._path, place)

    def _frame_bytes(self, offset: int, place: int, limit: int) -> int:
        """Bytes of the frame at that place of the open segment, which must be whole within the limit."""
        if place >= limit:
            raise cut_short(self._path, place, offset)
        size = frame_bytes(os.pread(self._file, HEAD.size, place))
        if size is None or place + size > limit:
            raise damaged(self._path, place, offset)
        return size

    def _enter(self, offset: int, mark: HighWaterMark) -> tuple[int, int]:
        """Opens the segment that holds the offset; returns how many of its bytes are durable, and
        the offset after it.
        """
        first, until = (mark.segment, mark.end) if offset >= mark.segment else self._locate(offset, mark)
        if first != self._segment:
            self._open(first, offset)
        size = os.fstat(self._file).st_size
        if first != mark.segment:
            return size, until
        if size < mark.durable_bytes:
            raise LogCorrupt(
                f"{self._path} has {size} bytes but {mark.durable_bytes} were durable; expected an unchanged file; "
                "restore it from a copy"
            )
        return mark.durable_bytes, until

    def _locate(self, offset: int, mark: HighWaterMark) -> tuple[int, int]:
        """The first offset of the older segment that holds this one, and that of the next segment."""
        if not self._firsts or offset < self._firsts[0] or self._firsts[-1] < mark.segment:
            self._firsts = segment_firsts(self.folder)
        after = bisect_right(self._firsts, offset)
        first = self._firsts[after - 1] if after else mark.first
        return first, self._firsts[after] if after < len(self._firsts) else mark.segment

    def _open(self, first: int, offset: int) -> None:
        path = segment_path(self.folder, first)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            mark = self.mark()
            raise (missing(path) if offset >= mark.first else self._out_of_range(offset, mark)) from None
        try:
            with naming(path, LogError):
                check_head(os.pread(file, SEGMENT.size, 0), path)
        except LogError:
            os.close(file)
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file = file
        self._segment = first
        self._known = [(first, SEGMENT.size)]
        self._next = (-1, 0)

    def _find(self, offset: int, limit: int) -> int:
        """The byte at which a record of the open segment starts."""
        if offset == self._next[0]:
            return self._next[1]
        at, place = self._known[bisect_right(self._known, (offset, limit)) - 1]
        while at < offset:
            skipped, used = skip_records(os.pread(self._file, min(SKIP_BYTES, limit - place), place), offset - at)
            if not skipped:
                skipped = 1
                used = self._frame_bytes(at, place, limit)
            at, place = at + skipped, place + used
            self._remember(at, place)
        return place

    def _remember(self, offset: int, place: int) -> None:
        if not self._known or place >= self._known[-1][1] + (SKIP_BYTES >> 4):
            self._known.append((offset, place))

    def _too_many(self, until: int) -> LogCorrupt:
        return LogCorrupt(
            f"{self._path} holds more records than up to {until - 1}, with which the next segment or the mark says "
            "that it ends; expected an unchanged file; restore it from a copy"
        )

    def _out_of_range(self, offset: int, mark: HighWaterMark) -> OffsetOutOfRange:
        return OffsetOutOfRange(
            f"record {offset} of {self.folder} cannot be read: it holds {mark.first} to {mark.end - 1}; expected "
            "an offset in that range; give the log more retention, or start a new run from the newest records"
        )

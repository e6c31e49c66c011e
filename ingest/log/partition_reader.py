"""Reads one partition of the embedded log while its writer may be appending."""

import os
from bisect import bisect_right
from pathlib import Path

from ingest.errors import LogError, OffsetOutOfRange
from ingest.log.frames import HEAD
from ingest.log.segments import (
    HighWaterMark,
    damaged,
    decode_records,
    read_mark,
    segment_firsts,
    segment_path,
    skip_records,
)
from ingest.streams.source import Record

SKIP_BYTES = 1 << 20
"""read at once when records are only skipped"""


class PartitionReader:
    """Remembers places it has read, so that reading on from there needs no search."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._firsts: list[int] = []
        self._segment = -1
        self._file = -1
        self._known: list[tuple[int, int]] = []
        """(offset, byte) pairs of the open segment, ascending"""
        self._next = (-1, 0)
        """where the last read ended"""
        try:
            self._mark_file = os.open(folder / "mark", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise LogError(
                f"cannot read partition {folder}: {error}; expected an existing partition; start its producer"
            ) from error

    def mark(self) -> HighWaterMark:
        return read_mark(self._mark_file) or HighWaterMark(0, 0, 0, 0)

    def read(self, offset: int, max_bytes: int) -> list[Record]:
        mark = self.mark()
        if not mark.first <= offset <= mark.end:
            raise self._out_of_range(offset, mark)
        if offset == mark.end:
            return []
        try:
            limit = self._enter(offset, mark)
        except FileNotFoundError:
            raise self._out_of_range(offset, self.mark()) from None
        place = self._find(offset, limit)
        records, used = self._records(offset, place, min(max_bytes, limit - place))
        if not records:
            length, _ = HEAD.unpack(os.pread(self._file, HEAD.size, place))
            records, used = self._records(offset, place, min(HEAD.size + length, limit - place))
        if not records:
            raise damaged(segment_path(self.folder, self._segment), place, offset)
        self._next = (offset + len(records), place + used)
        self._remember(*self._next)
        return records

    def close(self) -> None:
        for file in (self._file, self._mark_file):
            if file >= 0:
                os.close(file)
        self._file = self._mark_file = -1

    def _records(self, offset: int, place: int, size: int) -> tuple[list[Record], int]:
        return decode_records(
            os.pread(self._file, size, place), offset, segment_path(self.folder, self._segment), place
        )

    def _enter(self, offset: int, mark: HighWaterMark) -> int:
        """Opens the segment that holds the offset and returns how many of its bytes are durable."""
        if offset >= mark.segment:
            first = mark.segment
        else:
            if not self._firsts or offset < self._firsts[0] or self._firsts[-1] < mark.segment:
                self._firsts = segment_firsts(self.folder)
            first = self._firsts[bisect_right(self._firsts, offset) - 1] if self._firsts else -1
        if first != self._segment:
            file = os.open(segment_path(self.folder, first), os.O_RDONLY | os.O_CLOEXEC)
            if self._file >= 0:
                os.close(self._file)
            self._file, self._segment, self._known, self._next = file, first, [(first, 0)], (-1, 0)
        return mark.durable_bytes if first == mark.segment else os.fstat(self._file).st_size

    def _find(self, offset: int, limit: int) -> int:
        """The byte at which a record of the open segment starts."""
        if offset == self._next[0]:
            return self._next[1]
        at, place = self._known[bisect_right(self._known, (offset, limit)) - 1]
        while at < offset:
            skipped, used = skip_records(os.pread(self._file, min(SKIP_BYTES, limit - place), place), offset - at)
            if not skipped:
                head = os.pread(self._file, HEAD.size, place)
                used = HEAD.size + HEAD.unpack(head)[0] if len(head) == HEAD.size else limit
                skipped = 1
            if place + used > limit:
                raise damaged(segment_path(self.folder, self._segment), place, at)
            at, place = at + skipped, place + used
            self._remember(at, place)
        return place

    def _remember(self, offset: int, place: int) -> None:
        if not self._known or place >= self._known[-1][1] + (SKIP_BYTES >> 4):
            self._known.append((offset, place))

    def _out_of_range(self, offset: int, mark: HighWaterMark) -> OffsetOutOfRange:
        return OffsetOutOfRange(
            f"record {offset} of {self.folder} cannot be read: it holds {mark.first} to {mark.end - 1}; expected "
            "an offset in that range; give the log more retention, or start a new run from the newest records"
        )

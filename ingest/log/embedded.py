"""The embedded log: a small durable local topic, for one machine without a broker.

    FOLDER/TOPIC/00000/writer.lock                  held by the one writer of the partition
                       mark                         how far records are durable (ingest.log.segments)
                       00000000000000000000.log     records 0.. ; the next segment is named by its first offset

Appending:  1. write the records  2. sync them  3. move the mark.  Readers in any process go as far as the mark, so they
never see a record that a crash could take back. A crash after 1 or 2 leaves whole or torn records behind the
mark: opening for writing keeps the whole ones, cuts the torn rest and moves the mark. A record that was
behind the mark and is damaged stops reader and writer with the file and the byte.
"""

import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from ingest.errors import LogCorrupt, LogError, OffsetOutOfRange
from ingest.log.frames import HEAD, MAX_BODY, count_frames, is_torn, lock, sync_folder, truncate, write_durably
from ingest.log.segments import (
    Mark,
    damaged,
    decode_records,
    encode_record,
    read_mark,
    segment_firsts,
    segment_path,
    skip_records,
    write_mark,
)
from ingest.streams.sink import Entry
from ingest.streams.source import Record

SKIP_BYTES = 1 << 20


class PartitionWriter:
    """The one writer of one partition."""

    def __init__(self, folder: Path, segment_bytes: int = 64 << 20, retention_bytes: int | None = None) -> None:
        self.folder = folder
        self._segment_bytes, self._retention_bytes = segment_bytes, retention_bytes
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as undo:
            undo.callback(os.close, lock(folder / "writer.lock"))
            self._mark_file = os.open(folder / "mark", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            undo.callback(os.close, self._mark_file)
            self._mark = self._repair(read_mark(self._mark_file))
            self._file = os.open(segment_path(folder, self._mark.segment), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._files = undo.pop_all()
        os.fsync(self._file)
        sync_folder(folder)
        sync_folder(folder.parent)
        write_mark(self._mark_file, self._mark)

    @property
    def end(self) -> int:
        """The offset the next record will have."""
        return self._mark.end

    def append(self, entries: Sequence[Entry], time_ms: int | None = None) -> int:
        """Appends records and returns the first one's offset once all of them are durable and readable."""
        now = int(time.time() * 1000) if time_ms is None else time_ms
        first = self._mark.end
        if not entries:
            return first
        if max(len(payload) + len(key or b"") for key, payload in entries) > MAX_BODY - 64:
            raise LogError(
                f"cannot append a record to {self.folder}: it is over {MAX_BODY} bytes; expected less; split it"
            )
        if self._mark.place >= self._segment_bytes:
            self._roll()
        # 1. and 2. write and sync, 3. move the mark
        content = b"".join([encode_record(key, payload, now) for key, payload in entries])
        written = write_durably(self._file, content, self._mark.place)
        self._mark = self._mark._replace(end=first + len(entries), place=self._mark.place + written)
        write_mark(self._mark_file, self._mark)
        return first

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._files.close()

    def _roll(self) -> None:
        """Starts a new segment, and removes the oldest ones when retention says so."""
        os.fsync(self._mark_file)
        following = os.open(
            segment_path(self.folder, self._mark.end), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644
        )
        os.close(self._file)
        self._file = following
        self._mark = self._mark._replace(segment=self._mark.end, place=0)
        firsts = segment_firsts(self.folder)
        kept = firsts[self._over_retention(firsts) :]
        self._mark = self._mark._replace(first=kept[0])
        write_mark(self._mark_file, self._mark)
        # Before a segment goes the mark must name the next one, and the next one must be there, whatever happens.
        os.fsync(self._mark_file)
        sync_folder(self.folder)
        for first in firsts[: len(firsts) - len(kept)]:
            segment_path(self.folder, first).unlink()
        sync_folder(self.folder)

    def _over_retention(self, firsts: list[int]) -> int:
        """How many of the oldest segments go; never the newest."""
        if self._retention_bytes is None:
            return 0
        sizes = [segment_path(self.folder, first).stat().st_size for first in firsts]
        gone = 0
        while gone < len(sizes) - 1 and sum(sizes[gone:]) > self._retention_bytes:
            gone += 1
        return gone

    def _repair(self, mark: Mark | None) -> Mark:
        """The mark after the last whole record; cuts a torn tail behind the old mark."""
        firsts = segment_firsts(self.folder)
        if mark is None:
            mark = Mark(firsts[0], firsts[0], firsts[0], 0) if firsts else Mark(0, 0, 0, 0)
        if not firsts and mark.end == 0:
            return mark
        if mark.segment not in firsts:
            raise LogCorrupt(
                f"{segment_path(self.folder, mark.segment)} is missing though it holds records up to {mark.end}; "
                "expected the file; restore it from a copy"
            )
        for first in firsts[firsts.index(mark.segment) :]:
            if first > mark.segment:
                mark = self._enter(mark, first)
            mark = self._scan(mark, first == firsts[-1])
        kept = [first for first in firsts if first >= mark.first]
        return mark._replace(first=kept[0])

    def _enter(self, mark: Mark, first: int) -> Mark:
        if first != mark.end:
            raise damaged(segment_path(self.folder, mark.segment), mark.place, mark.end)
        return mark._replace(segment=first, place=0)

    def _scan(self, mark: Mark, is_last: bool) -> Mark:
        path = segment_path(self.folder, mark.segment)
        content = path.read_bytes()
        if len(content) < mark.place:
            raise LogCorrupt(
                f"{path} has {len(content)} bytes but {mark.place} were durable: records up to {mark.end} are lost; "
                "expected an unchanged file; restore it, or remove the file 'mark' beside it to accept the loss"
            )
        frames, place = count_frames(content, mark.place)
        if place < len(content):
            if not (is_last and is_torn(content, place)):
                raise damaged(path, place, mark.end + frames)
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            truncate(file, place)
            os.close(file)
        return mark._replace(end=mark.end + frames, place=place)


class LogWriter:
    """Writes some or all partitions of a topic; creates what is missing. A Sink."""

    def __init__(
        self,
        folder: Path,
        topic: str,
        partitions: int | Sequence[int],
        segment_bytes: int = 64 << 20,
        retention_bytes: int | None = None,
    ) -> None:
        numbers = range(partitions) if isinstance(partitions, int) else partitions
        self._writers: dict[int, PartitionWriter] = {}
        with ExitStack() as undo:
            for number in numbers:
                writer = PartitionWriter(folder / topic / f"{number:05d}", segment_bytes, retention_bytes)
                undo.callback(writer.close)
                self._writers[number] = writer
            self._undo = undo.pop_all()

    @property
    def partitions(self) -> list[int]:
        return list(self._writers)

    def append(self, partition: int, entries: Sequence[Entry], time_ms: int | None = None) -> int:
        """Appends records to one partition; see PartitionWriter.append."""
        return self._writers[partition].append(entries, time_ms)

    def write(self, entries: Mapping[int, Sequence[Entry]]) -> None:
        for partition, batch in sorted(entries.items()):
            self.append(partition, batch)

    def ends(self) -> dict[int, int]:
        """The offset the next record of each partition will have."""
        return {number: writer.end for number, writer in self._writers.items()}

    def close(self) -> None:
        self._undo.close()


class LogReader:
    """Reads a topic while others append to it. A Source; one thread at a time."""

    def __init__(self, folder: Path, topic: str) -> None:
        self._folder = folder / topic
        self._partitions: dict[int, PartitionReader] = {}

    def partitions(self) -> list[int]:
        return sorted(
            int(p.parent.name) for p in self._folder.glob("*/mark") if p.parent.name.isdigit() and p.stat().st_size
        )

    def span(self, partition: int) -> tuple[int, int]:
        mark = self._open(partition).mark()
        return mark.first, mark.end

    def read(self, partition: int, offset: int, max_bytes: int = 1 << 20) -> list[Record]:
        return self._open(partition).read(offset, max_bytes)

    def offset_at(self, partition: int, time_ms: int) -> int:
        first, end = self.span(partition)
        return bisect_left(range(end), time_ms, lo=first, key=lambda at: self.read(partition, at, 1)[0].time_ms)

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Nobody else looks at the embedded log."""

    def close(self) -> None:
        for reader in self._partitions.values():
            reader.close()
        self._partitions.clear()

    def _open(self, partition: int) -> "PartitionReader":
        if partition not in self._partitions:
            self._partitions[partition] = PartitionReader(self._folder / f"{partition:05d}")
        return self._partitions[partition]


class PartitionReader:
    """Reads one partition; remembers places it has seen, so that going on from there needs no search."""

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

    def mark(self) -> Mark:
        return read_mark(self._mark_file) or Mark(0, 0, 0, 0)

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

    def _enter(self, offset: int, mark: Mark) -> int:
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
        return mark.place if first == mark.segment else os.fstat(self._file).st_size

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

    def _out_of_range(self, offset: int, mark: Mark) -> OffsetOutOfRange:
        return OffsetOutOfRange(
            f"record {offset} of {self.folder} cannot be read: it holds {mark.first} to {mark.end - 1}; expected "
            "an offset in that range; give the log more retention, or start a new run from the newest records"
        )

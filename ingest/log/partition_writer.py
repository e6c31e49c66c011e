"""Writes one partition of the embedded log: appends, starts segments, removes old ones, repairs a torn tail."""

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from ingest.errors import LogCorrupt, LogError
from ingest.log.frames import MAX_BODY, count_frames, is_torn, lock, sync_folder, truncate, write_durably
from ingest.log.segments import (
    HighWaterMark,
    damaged,
    encode_record,
    read_mark,
    segment_firsts,
    segment_path,
    write_mark,
)
from ingest.streams.sink import Entry


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
        if self._mark.durable_bytes >= self._segment_bytes:
            self._roll()
        # 1. and 2. write and sync, 3. move the mark
        content = b"".join([encode_record(key, payload, now) for key, payload in entries])
        written = write_durably(self._file, content, self._mark.durable_bytes)
        self._mark = self._mark._replace(end=first + len(entries), durable_bytes=self._mark.durable_bytes + written)
        write_mark(self._mark_file, self._mark)
        return first

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._files.close()

    def _roll(self) -> None:
        """Starts a new segment, and removes the oldest ones if the partition is over its retention."""
        os.fsync(self._mark_file)
        following = os.open(
            segment_path(self.folder, self._mark.end), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644
        )
        os.close(self._file)
        self._file = following
        self._mark = self._mark._replace(segment=self._mark.end, durable_bytes=0)
        firsts = segment_firsts(self.folder)
        kept = firsts[self._over_retention(firsts) :]
        self._mark = self._mark._replace(first=kept[0])
        write_mark(self._mark_file, self._mark)
        # Before a segment is removed, the mark must durably name the next one, and that one must durably exist.
        os.fsync(self._mark_file)
        sync_folder(self.folder)
        for first in firsts[: len(firsts) - len(kept)]:
            segment_path(self.folder, first).unlink()
        sync_folder(self.folder)

    def _over_retention(self, firsts: list[int]) -> int:
        """How many of the oldest segments are over the limit; never the newest."""
        if self._retention_bytes is None:
            return 0
        sizes = [segment_path(self.folder, first).stat().st_size for first in firsts]
        gone = 0
        while gone < len(sizes) - 1 and sum(sizes[gone:]) > self._retention_bytes:
            gone += 1
        return gone

    def _repair(self, mark: HighWaterMark | None) -> HighWaterMark:
        """The mark after the last whole record; cuts a torn tail that follows the old mark."""
        firsts = segment_firsts(self.folder)
        if mark is None:
            mark = HighWaterMark(firsts[0], firsts[0], firsts[0], 0) if firsts else HighWaterMark(0, 0, 0, 0)
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

    def _enter(self, mark: HighWaterMark, first: int) -> HighWaterMark:
        """The mark at the start of the next segment, which must begin where the last one ends."""
        if first != mark.end:
            raise damaged(segment_path(self.folder, mark.segment), mark.durable_bytes, mark.end)
        return mark._replace(segment=first, durable_bytes=0)

    def _scan(self, mark: HighWaterMark, is_last: bool) -> HighWaterMark:
        """The mark after the whole records of its segment; only the last segment may have a torn tail, which is cut."""
        path = segment_path(self.folder, mark.segment)
        content = path.read_bytes()
        if len(content) < mark.durable_bytes:
            raise LogCorrupt(
                f"{path} has {len(content)} bytes but {mark.durable_bytes} were durable: records up to {mark.end} are "
                "lost; expected an unchanged file; restore it, or remove the file 'mark' beside it to accept the loss"
            )
        frames, place = count_frames(content, mark.durable_bytes)
        if place < len(content):
            if not (is_last and is_torn(content, place)):
                raise damaged(path, place, mark.end + frames)
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            truncate(file, place)
            os.close(file)
        return mark._replace(end=mark.end + frames, durable_bytes=place)

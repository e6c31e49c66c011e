"""Writes one partition of the embedded log: appends, starts segments, removes old ones."""

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path

import structlog

from infra.base.files import naming
from ingest.errors import LogError
from ingest.log.floor import lowest_needed
from ingest.log.frames import lock, sync_folder, write_durably
from ingest.log.repair import repair
from ingest.log.segments import (
    SEGMENT,
    SegmentHead,
    create_segment,
    encode_records,
    mark_path,
    read_mark,
    segment_firsts,
    segment_path,
    write_mark,
)
from ingest.streams.sink import Entry

CAP = 4
"""Multiple of its retention that a partition may keep for a run, unless set otherwise."""


class PartitionWriter:
    """The one writer of one partition."""

    def __init__(
        self,
        folder: Path,
        segment_bytes: int = 64 << 20,
        retention_bytes: int | None = None,
        retention_cap_bytes: int | None = None,
        retention_seconds: float | None = None,
    ) -> None:
        """retention_cap_bytes: the size above which even records that a run may read again are removed; None: CAP times
        retention. retention_seconds: segments whose newest record is older exceed the limit, too.
        """
        self.folder = folder
        self._segment_bytes = segment_bytes
        self._retention_bytes = retention_bytes
        self._retention_seconds = retention_seconds
        self._cap_bytes = retention_cap_bytes or CAP * (retention_bytes or 0)
        with ExitStack() as undo, naming(folder, LogError):
            folder.mkdir(parents=True, exist_ok=True)
            undo.callback(os.close, lock(folder / "writer.lock"))
            self._mark_file = os.open(mark_path(folder), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            undo.callback(os.close, self._mark_file)
            is_new = not segment_firsts(folder)
            self._mark = repair(folder, read_mark(self._mark_file, folder))
            self._file = os.open(segment_path(folder, self._mark.segment), os.O_RDWR | os.O_CLOEXEC)
            undo.callback(lambda: os.close(self._file))
            if not is_new:  # a new segment is durable already
                os.fsync(self._file)
                sync_folder(folder)
            sync_folder(folder.parent)
            write_mark(self._mark_file, self._mark, folder)
            os.fsync(self._mark_file)
            self._files = undo.pop_all()

    @property
    def end(self) -> int:
        """The offset that the next record will have."""
        return self._mark.end

    def append(self, entries: Sequence[Entry], time_ms: int | None = None) -> int:
        """Appends records and returns the first one's offset once all of them are durable and readable."""
        now = int(time.time() * 1000) if time_ms is None else time_ms
        first = self._mark.end
        if not entries:
            return first
        content = encode_records(entries, now)
        if self._mark.durable_bytes >= self._segment_bytes and self._mark.end > self._mark.segment:
            self._roll()
        # 1. and 2. write and sync, 3. move the mark
        path = segment_path(self.folder, self._mark.segment)
        written = write_durably(self._file, content, self._mark.durable_bytes, path)
        self._mark = self._mark._replace(end=first + len(entries), durable_bytes=self._mark.durable_bytes + written)
        write_mark(self._mark_file, self._mark, self.folder)
        return first

    def close(self) -> None:
        self._files.close()

    def _roll(self) -> None:
        """Starts a new segment, and removes the oldest ones if the partition exceeds its retention.

        1. The new segment is created durably, file and name.
        2. The mark durably names it, and what is retained.
        3. Old segments are removed.

        After a power failure at any point the next writer can open the partition: the mark never names a segment that
        may be missing, and no segment is missing that the mark may still name.
        """
        mark = self._mark
        firsts = segment_firsts(self.folder)
        gone = firsts[: self._over_retention(firsts)]
        retained = next((first for first in firsts[len(gone) :] if first >= mark.first), mark.end)
        following = create_segment(self.folder, SegmentHead(mark.end, mark.segment, retained))  # 1
        os.close(self._file)
        self._file = following
        self._mark = mark._replace(first=retained, segment=mark.end, durable_bytes=SEGMENT.size)
        with naming(self.folder, LogError):
            write_mark(self._mark_file, self._mark, self.folder)  # 2
            os.fsync(self._mark_file)
            for first in gone:
                segment_path(self.folder, first).unlink()  # 3
            sync_folder(self.folder)

    def _over_retention(self, firsts: list[int]) -> int:
        """How many of the oldest segments exceed the limit, and are not needed by a run or exceed the cap, too."""
        found = [segment_path(self.folder, first).stat() for first in firsts]
        over = over_cap = 0
        if self._retention_bytes is not None:
            sizes = [file.st_size for file in found]
            over, over_cap = (_oldest_over(sizes, limit) for limit in (self._retention_bytes, self._cap_bytes))
        if self._retention_seconds is not None:
            since = time.time() - self._retention_seconds
            over = max(over, sum(1 for _ in takewhile(lambda file: file.st_mtime < since, found)))
        if not over:
            return 0
        needed = self._needed()
        free = sum(end <= needed for end in [*firsts[1:], self._mark.end]) if needed is not None else over
        gone = min(over, max(free, over_cap))
        if gone > free:
            hint = "records are removed that a run may have to read again; raise stream.retention_cap_bytes"
            facts = {
                "needed_from": needed,
                "cap_bytes": self._cap_bytes,
                "removed_up_to": [*firsts, self._mark.end][gone],
            }
            structlog.get_logger().warning(hint, partition=str(self.folder), **facts)
        return gone

    def _needed(self) -> int | None:
        """The first record that a run may read again; None: there is no such run."""
        return lowest_needed(self.folder.parent, int(self.folder.name)) if self.folder.name.isdigit() else None


def _oldest_over(sizes: list[int], limit: int) -> int:
    """How many of the oldest must be removed until the rest is within a limit."""
    gone = 0
    while gone < len(sizes) and sum(sizes[gone:]) > limit:
        gone += 1
    return gone

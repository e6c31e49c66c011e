"""The embedded log: a small durable local topic, for one machine without a broker.

    FOLDER/TOPIC/floor-RUN.json                     what a run may have to read again (ingest.log.floor)
                 00000/writer.lock                  held by the one writer of the partition
                       mark                         how far records are durable (ingest.log.segments)
                       00000000000000000000.log     records 0.. ; the next segment is named by its first offset

Appending: 1. write the records 2. sync them 3. move the mark. Readers in any process read up to the mark, so they never
see a record that a crash could take back. A crash after 1 or 2 leaves whole or torn records after the mark: opening for
writing keeps the whole ones, truncates the torn rest and moves the mark (ingest.log.repair). Damage, which is anything
that neither a crash nor retention explains (ingest.log.frames), stops reader and writer with an error that names the
file: a changed record, a segment that is missing, emptied or truncated, a mark that is broken or lost. Segments and
marks begin with their version; those of the version before are refused.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from ingest.log.partition_reader import PartitionReader, has_begun
from ingest.log.partition_writer import PartitionWriter
from ingest.streams.sink import Entry
from ingest.streams.source import Record


class LogWriter:
    """Writes some or all partitions of a topic; creates what is missing. Implements Sink."""

    def __init__(
        self,
        folder: Path,
        topic: str,
        partitions: int | Sequence[int],
        segment_bytes: int = 64 << 20,
        retention_bytes: int | None = None,
        retention_cap_bytes: int | None = None,
        retention_seconds: float | None = None,
    ) -> None:
        numbers = range(partitions) if isinstance(partitions, int) else partitions
        self._writers: dict[int, PartitionWriter] = {}
        with ExitStack() as undo:
            for number in numbers:
                writer = PartitionWriter(
                    folder=folder / topic / f"{number:05d}",
                    segment_bytes=segment_bytes,
                    retention_bytes=retention_bytes,
                    retention_cap_bytes=retention_cap_bytes,
                    retention_seconds=retention_seconds,
                )
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
        """The offset that the next record of each partition will have."""
        return {number: writer.end for number, writer in self._writers.items()}

    def close(self) -> None:
        self._undo.close()


class LogReader:
    """Reads a topic while others append to it. Implements Source; for one thread at a time."""

    def __init__(self, folder: Path, topic: str) -> None:
        self._folder = folder / topic
        self._partitions: dict[int, PartitionReader] = {}

    @property
    def clock(self) -> str:
        return "append"

    def partitions(self) -> list[int]:
        folders = (folder for folder in self._folder.glob("*/") if folder.name.isdigit())
        return sorted(int(folder.name) for folder in folders if has_begun(folder))

    def span(self, partition: int) -> tuple[int, int]:
        mark = self._open(partition).mark()
        return mark.first, mark.end

    def read(self, partition: int, offset: int, max_bytes: int = 1 << 20) -> list[Record]:
        return self._open(partition).read(offset, max_bytes)

    def offset_at(self, partition: int, time_ms: int) -> int:
        first, end = self.span(partition)
        return bisect_left(range(end), time_ms, lo=first, key=lambda at: self.read(partition, at, 1)[0].time_ms)

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Does nothing: the embedded log does not show positions to anyone."""

    def close(self) -> None:
        for reader in self._partitions.values():
            reader.close()
        self._partitions.clear()

    def _open(self, partition: int) -> PartitionReader:
        if partition not in self._partitions:
            self._partitions[partition] = PartitionReader(self._folder / f"{partition:05d}")
        return self._partitions[partition]

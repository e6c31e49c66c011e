"""What is observed of a run while it runs, because retention removes it later: events in the log, verdicts on
snapshots.
"""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from api.runs.requests import READ_BYTES, parse_tag
from infra.base.errors import FreshetError
from infra.base.process import Stop
from infra.run.settings import STORED, Settings, read_stored
from infra.verify.checkpoints import open_checkpoints
from ingest.errors import BrokerError, SourceError
from ingest.opening import open_source
from ingest.streams.position import Position
from ingest.streams.source import Record, Source
from ps.checkpoints.manifest import CheckpointManifest, manifest_numbers, read_manifest

LOOK_SECONDS = 0.2


class TaggedRecords:
    """Records of requests with a key, read from the stream as they come."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}
        """Offset after the last record that was read, by partition."""
        self._missing: dict[bytes, set[int]] = {}
        """Parts of each request that have not arrived yet."""
        self.parts: dict[str, int] = {}
        """How many records each request has, by its name in hex."""
        self.total = 0
        """Records with a tag."""
        self.others = 0
        """Records without one."""
        self.twice = 0
        """Records of parts that had arrived already."""
        self.unread = 0
        """Records that retention had removed before they were read."""

    def read(self, source: Source) -> None:
        """Reads what has arrived; raises SourceError or BrokerError."""
        for partition in source.partitions():
            first, _ = source.span(partition)
            at = self._next.get(partition, 0)
            self.unread += max(0, first - at)
            self._next[partition] = max(first, at)
            for record in records_from(source, partition, self._next[partition]):
                self._add(record.key)
                self._next[partition] = record.offset + 1

    def is_whole(self, request: str) -> bool:
        """Whether every part of it has arrived."""
        return request in self.parts and not self._missing[bytes.fromhex(request)]

    def _add(self, key: bytes | None) -> None:
        tagged = parse_tag(key)
        if tagged is None:
            self.others += 1
            return
        written, part = tagged
        self.total += 1
        missing = self._missing.setdefault(written.request, set(range(written.parts)))
        self.parts.setdefault(written.request.hex(), written.parts)
        self.twice += part not in missing
        missing.discard(part)


def records_from(source: Source, partition: int, offset: int) -> Iterator[Record]:
    while records := source.read(partition, offset, READ_BYTES):
        yield from records
        offset = records[-1].offset + 1


def count_left(source: Source, positions: dict[int, Position]) -> int:
    """Records that are in no step."""
    return sum(
        1
        for partition in source.partitions()
        for _ in records_from(source, partition, positions.get(partition, Position(0)).offset)
    )


class Witness:
    """Observes a run's stream and checkpoints several times a second, since checkpoints may be
    removed after seconds.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._settings: Settings | None = None
        self._source: Source | None = None
        self.tagged = TaggedRecords()
        self.checkpoints: dict[int, CheckpointManifest] = {}
        """All checkpoints that were seen, by number."""
        self.failure = ""
        """Why the stream could not be read the last time; empty: it was read."""
        self._stop = Stop()
        self._thread = threading.Thread(target=self._run, name="witness", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Reads the rest of a run that has ended."""
        self.close()
        self._source = None
        self.read_new()

    def read_new(self) -> None:
        """Reads what is new, as far as possible now."""
        if self._settings is None:
            if not (self._folder / STORED).exists():
                return
            self._settings = read_stored(self._folder)
        self._look_at_checkpoints()
        try:
            if self._source is None:
                self._source = open_source(self._settings.stream, self._settings.kafka)
            self.tagged.read(self._source)
            self.failure = ""
        except (SourceError, BrokerError) as error:
            self.failure = str(error)

    def close(self) -> None:
        self._stop.request("over")
        if self._thread.is_alive():
            self._thread.join()
        if self._source is not None:
            self._source.close()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            self.read_new()

    def _look_at_checkpoints(self) -> None:
        storage = open_checkpoints(self._folder)
        for number in manifest_numbers(storage):
            if number not in self.checkpoints:
                try:
                    self.checkpoints[number] = read_manifest(storage, number)
                except FreshetError:  # it has just been removed
                    continue


def left_in(settings: Settings, positions: dict[int, Position]) -> int:
    """Events that were left in the stream when the run was stopped; raises SourceError or BrokerError."""
    with closing(open_source(settings.stream, settings.kafka)) as source:
        return count_left(source, positions)

"""The partitions that are read, one feed each: opened at the start, extended by new ones, skipped ahead together."""

from contextlib import suppress

from ingest.batches.feed import Feed
from ingest.batches.job import LoaderJob
from ingest.codec.decoder import Decoder
from ingest.errors import SourceUnavailable
from ingest.streams.position import Position
from ingest.streams.source import Source


class Partitions:
    """The feeds of one source."""

    def __init__(self, source: Source, job: LoaderJob) -> None:
        self._source = source
        self._job = job
        self._decoder = Decoder(job.schema)
        self._feeds: dict[int, Feed] = {}
        self.start: dict[int, Position] | None = None
        """Where the partitions began that existed at the opening; None: not opened yet."""

    @property
    def feeds(self) -> list[Feed]:
        """The feeds in the order of partitions."""
        return [self._feeds[partition] for partition in sorted(self._feeds)]

    def open(self) -> bool:
        """Adds the partitions that exist at the start; False if the source cannot answer now."""
        start = self._job.start
        try:
            partitions = sorted({*self._source.partitions(), *start})
            firsts = {partition: 0 if start else self._source.span(partition)[0] for partition in partitions}
        except SourceUnavailable:
            return False
        for partition in partitions:
            self._add(partition, start.get(partition, Position(firsts[partition])))
        self.start = {partition: self._feeds[partition].position for partition in partitions}
        return True

    def add_new(self) -> None:
        """Adds partitions that have been created since, each from its beginning."""
        with suppress(SourceUnavailable):
            for partition in self._source.partitions():
                if partition not in self._feeds:
                    self._add(partition, Position(0))

    def count_waiting(self) -> int:
        """Events that are in no batch, decoded or still in the source, up to the newest known ends."""
        with suppress(SourceUnavailable):
            for feed in self._feeds.values():
                feed.known_end = self._source.span(feed.partition)[1]
        return sum(feed.waiting for feed in self._feeds.values())

    def skip_to_end(self) -> None:
        """Skips everything that waits."""
        for feed in self._feeds.values():
            feed.skip_to(self._source.span(feed.partition)[1])

    def _add(self, partition: int, start: Position) -> None:
        self._feeds[partition] = Feed(self._source, self._decoder, self._job, partition, start)

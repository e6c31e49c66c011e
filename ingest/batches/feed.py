"""The events of one partition: read, decoded, and kept ready for the next batch."""

from ingest.batches.job import LoaderJob
from ingest.codec.decoder import Decoded, Decoder, end_of, join_decoded, split_at
from ingest.errors import OffsetOutOfRange, SourceUnavailable
from ingest.samples import Samples
from ingest.streams.position import Position, Range
from ingest.streams.source import Record, Source

MANY_REJECTS = 4096
MANY_REJECTED_BYTES = 8 << 20
"""If bad events of this size wait in a partition, a batch is formed at once, so that they cannot fill the memory."""


EXAMPLES = 16
"""Most records kept as examples."""
EXAMPLE_BYTES = 4096
"""Size of the largest example in bytes."""


class Feed:
    """Decoded events of one partition that are in no batch yet."""

    def __init__(self, source: Source, decoder: Decoder, job: LoaderJob, partition: int, start: Position) -> None:
        self.partition = partition
        self.position = start
        """The position before the first event that is in no batch yet."""
        self.is_at_end = False
        """Whether the last read found no more records."""
        self.known_end = start.offset
        """Offset after the partition's last record, when last checked."""
        self.skipped: list[Range] = []
        """Ranges skipped since the last batch."""
        self.skipped_events = 0
        self.examples: list[bytes] = []
        """Some of the records read last, unchanged."""
        self._source = source
        self._decoder = decoder
        self._job = job
        self._records_read = self._events_read = 0
        self._hold(decoder.nothing(start))

    @property
    def ready(self) -> int:
        """Number of good events that are decoded and in no batch yet."""
        return self._ready

    @property
    def samples(self) -> Samples:
        """The good events that are decoded and in no batch yet."""
        return self._joined().samples

    @property
    def rejected(self) -> int:
        """Number of bad events that are decoded and in no batch yet."""
        return self._rejected

    @property
    def omitted(self) -> int:
        """Number of negatives that down-sampling has left out, decoded and in no batch yet."""
        return self._omitted

    @property
    def unread(self) -> Position:
        """The position before the first event that is not decoded yet."""
        return self._pending[-1].end

    @property
    def has_something(self) -> bool:
        """Whether a batch formed now would contain anything of this partition."""
        return bool(self.ready or self.rejected or self.omitted or self.skipped)

    @property
    def is_flooded(self) -> bool:
        """Whether so many bad events wait that nothing more is read until a batch contains them."""
        return self.rejected >= MANY_REJECTS or self._rejected_bytes >= MANY_REJECTED_BYTES

    @property
    def is_exhausted(self) -> bool:
        """Whether filling would bring nothing more for the next batch."""
        return self.is_at_end or self.is_flooded

    @property
    def waiting(self) -> int:
        """Events of the partition that are in no batch yet."""
        decoded = self.ready + self.rejected + self.omitted
        return decoded + self._estimate(max(0, self.known_end - self.unread.offset))

    def fill(self, want: int) -> None:
        """Reads until that many good events are ready or the feed is exhausted."""
        while self.ready < want and not self.is_exhausted:
            records = self._read()
            if not records:
                self.is_at_end = True
                return
            self.examples = [r.payload for r in records[:EXAMPLES] if len(r.payload) <= EXAMPLE_BYTES]
            decoded = self._decoder.decode(records, self.unread)
            self._records_read += len(records)
            self._events_read += len(decoded) + len(decoded.rejects) + len(decoded.omitted_at)
            self._hold(*self._pending, decoded)

    def take_events(self, count: int, is_partial: bool) -> tuple[Range, tuple[Decoded, ...]] | None:
        """The next count good events with the bad ones before them; in a partial batch also the bad ones after the
        last. They are not joined yet.
        """
        takes_rest = is_partial and count == self.ready
        end = self.unread if takes_rest else self._end_of(count)
        if end == self.position:
            return None
        taken = Range(self.partition, self.position, end)
        self.position = end
        return taken, self._take_until(end, count)

    def _end_of(self, count: int) -> Position:
        """The position after so many good events."""
        if not count:
            return self.position
        left = count
        for part in self._pending:
            if left <= len(part):
                break
            left -= len(part)
        return end_of(part, left)

    def _take_until(self, end: Position, count: int) -> tuple[Decoded, ...]:
        """Everything before a position, with so many good events."""
        taken = []
        left = list(self._pending)
        while left and left[0].end <= end:
            part = left.pop(0)
            taken.append(part)
            count -= len(part)
        if left:
            head, left[0] = split_at(left[0], count, end)
            taken.append(head)
        self._hold(*(left or [self._decoder.nothing(end)]))
        return tuple(taken)

    def skip_to(self, offset: int) -> None:
        """Skips everything before that record."""
        if offset <= self.unread.offset:
            return
        self.skipped_events += self.ready + self.rejected + self.omitted
        self.skipped_events += self._estimate(offset - self.unread.offset)
        self.skipped_events -= self.unread.index
        self.skipped.append(Range(self.partition, self.position, Position(offset)))
        self.position = Position(offset)
        self._hold(self._decoder.nothing(self.position))

    def take_skipped(self) -> tuple[list[Range], int]:
        """The ranges skipped since the last call, and the number of events in them."""
        taken = self.skipped, self.skipped_events
        self.skipped = []
        self.skipped_events = 0
        return taken

    def _estimate(self, records: int) -> int:
        """Estimated events in that many unread records, at the mean of those read."""
        return round(records * (self._events_read / self._records_read if self._records_read else 1.0))

    def _hold(self, *parts: Decoded) -> None:
        """Keeps consecutive parts for the next batches. They are joined only when a batch is formed: each join copies
        all of them.
        """
        filled = (part for part in parts[:-1] if len(part) or part.rejects or len(part.omitted_at))
        self._pending = [*filled, parts[-1]]
        self._ready = sum(map(len, parts))
        self._rejected = sum(len(part.rejects) for part in parts)
        self._omitted = sum(len(part.omitted_at) for part in parts)
        self._rejected_bytes = sum(len(reject.payload) for part in parts for reject in part.rejects)

    def _joined(self) -> Decoded:
        self._pending = [join_decoded(self._pending)]
        return self._pending[0]

    def _read(self) -> list[Record]:
        """The next records; none at the end, and none while pending events must be batched before a range is skipped.

        A source that cannot answer now gives none either, so that ready events are batched in time. But a job that
        stops at the end must not mistake silence for the end; there SourceUnavailable is raised.
        """
        try:
            return self._source.read(self.partition, self.unread.offset, self._job.read_bytes)
        except OffsetOutOfRange:
            first, end = self._source.span(self.partition)
            if self._job.on_out_of_range == "stop" or self.unread.offset >= first:
                raise
            if self.ready or self.rejected or self.omitted:
                return []
            self.skip_to(first if self._job.on_out_of_range == "earliest" else end)
            return self._read()
        except SourceUnavailable:
            if self._job.stop_at_end:
                raise
            return []

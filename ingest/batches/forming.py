"""Forming batches: evenly over partitions while they have events, and again, exactly, from the ranges of a manifest.

A batch holds, per partition, one range of events: good ones become samples, bad ones ride along as dead letters and do
not count towards the size. A range ends after its last sample; bad events behind that go with the next batch, or with
this one when it is partial. With the same records in the source the same batches are formed. Ranges that are left out
(the lag policy, retention) go with the next batch.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from ingest.batches.manifest import Position, Range
from ingest.codec.decoder import Decoded, Decoder, count_before, cut, end_of, join_decoded
from ingest.errors import OffsetOutOfRange, SourceError, SourceUnavailable
from ingest.letters.letter import DeadLetter
from ingest.samples import Samples, join_samples, no_samples
from ingest.schema import Schema
from ingest.streams.source import Record, Source

PATIENCE_SECONDS, AGAIN_SECONDS = 60.0, 0.05
"""how long, and how often, records that a manifest names are asked for"""
MANY_REJECTS = 4096
MANY_REJECTED_BYTES = 8 << 20
"""A partition with this many bad events waiting makes the batch go out, so that poison cannot fill the memory."""


@dataclass(frozen=True, eq=False)
class Batch:
    """The samples of one step, by partition, then position. It may hold dead letters alone, and no sample."""

    ranges: tuple[Range, ...]
    samples: Samples
    dead_letters: tuple[DeadLetter, ...]
    skipped: tuple[Range, ...] = ()
    skipped_events: int = 0


OutOfRange = Literal["stop", "earliest", "newest"]


class Feed:
    """Events of one partition, decoded ahead of the batch that takes them."""

    def __init__(
        self,
        source: Source,
        decoder: Decoder,
        partition: int,
        start: Position,
        read_bytes: int,
        on_out_of_range: OutOfRange = "stop",
        is_patient: bool = True,
    ) -> None:
        """A patient feed raises SourceUnavailable; another one gives what it has, and asks again for the next batch."""
        self.partition = partition
        self.position = start
        """before the first event not yet taken"""
        self.is_at_end = False
        self.known_end = start.offset
        """offset after the partition's last record, when it was last looked at"""
        self.records = 0
        self.events = 0
        self.skipped: list[Range] = []
        """left out since the last batch"""
        self.skipped_events = 0
        self._source, self._decoder, self._read_bytes = source, decoder, read_bytes
        self._on_out_of_range, self._is_patient = on_out_of_range, is_patient
        self._hold(decoder.nothing(start))

    @property
    def ready(self) -> int:
        """Good events decoded and not yet taken."""
        return len(self._pending)

    @property
    def rejected(self) -> int:
        """Bad events decoded and not yet taken."""
        return len(self._pending.rejects)

    @property
    def unread(self) -> Position:
        """Before the first event not yet decoded."""
        return self._pending.end

    @property
    def is_exhausted(self) -> bool:
        """Whether filling would bring nothing more for the batch in the making."""
        is_flooded = self.rejected >= MANY_REJECTS or self._rejected_bytes >= MANY_REJECTED_BYTES
        return self.is_at_end or is_flooded

    def fill(self, want: int) -> None:
        """Reads until that many good events are ready or the feed is exhausted."""
        while self.ready < want and not self.is_exhausted:
            records = self._read()
            if not records:
                self.is_at_end = True
                return
            decoded = self._decoder.decode(records, self._pending.end)
            self.records += len(records)
            self.events += len(decoded) + len(decoded.rejects)
            self._hold(join_decoded([self._pending, decoded]) if self.ready or self.rejected else decoded)

    @property
    def waiting(self) -> int:
        """Events of the partition that no batch has taken."""
        return self.ready + self.rejected + self.estimate(max(0, self.known_end - self.unread.offset))

    def estimate(self, records: int) -> int:
        """Events in so many unread records, going by those read."""
        return round(records * (self.events / self.records if self.records else 1.0))

    def skip_to(self, offset: int) -> None:
        """Leaves out everything before that record."""
        if offset <= self.unread.offset:
            return
        self.skipped_events += self.ready + self.rejected + self.estimate(offset - self.unread.offset)
        self.skipped_events -= self.unread.index
        self.skipped.append(Range(self.partition, self.position, Position(offset)))
        self.position = Position(offset)
        self._hold(self._decoder.nothing(self.position))

    def _hold(self, pending: Decoded) -> None:
        self._pending = pending
        self._rejected_bytes = sum(len(reject.payload) for reject in pending.rejects)

    def _read(self) -> list[Record]:
        """The next records; none at the end, and where the feed has to give what it has before it can go on."""
        try:
            return self._source.read(self.partition, self.unread.offset, self._read_bytes)
        except OffsetOutOfRange:
            first, end = self._source.span(self.partition)
            if self._on_out_of_range == "stop" or self.unread.offset >= first:
                raise
            if self.ready or self.rejected:
                return []
            self.skip_to(first if self._on_out_of_range == "earliest" else end)
            return self._read()
        except SourceUnavailable:
            if self._is_patient:
                raise
            return []

    def take(self, count: int, is_partial: bool) -> tuple[Range, Decoded] | None:
        """The next count good events with the bad ones before them; in a partial batch also those behind the last."""
        if is_partial and count == self.ready:
            end = self._pending.end
        else:
            end = end_of(self._pending, count) if count else self.position
        if end == self.position:
            return None
        head, rest = cut(self._pending, count, end)
        self._hold(rest)
        taken = Range(self.partition, self.position, end)
        self.position = end
        return taken, head


def share(ready: Sequence[int], batch: int, first: int) -> list[int]:
    """How many samples each partition gives: evenly, the odd ones from ``first`` on; others fill in for short ones."""
    level, left = 0, batch
    for place, most in enumerate(sorted(ready)):
        level = left // (len(ready) - place)
        if most > level:
            break
        left -= most
    given = [min(most, level) for most in ready]
    left = batch - sum(given)
    for i in [(first + place) % len(ready) for place in range(len(ready))]:
        odd = min(left, ready[i] - given[i], 1)
        given[i], left = given[i] + odd, left - odd
    return given


def fill(feeds: Sequence[Feed], batch: int) -> list[int]:
    """Reads until the batch is complete or every feed is exhausted; returns how many samples each feed gives."""
    first = sum(feed.position.offset + feed.position.index for feed in feeds) % max(len(feeds), 1)
    while True:
        shares = share([feed.ready if feed.is_exhausted else batch for feed in feeds], batch, first)
        short = [(feed, want) for feed, want in zip(feeds, shares, strict=True) if feed.ready < want]
        if not short:
            return shares
        for feed, want in short:
            feed.fill(want)


def assemble(feeds: Sequence[Feed], shares: Sequence[int], is_partial: bool, schema: Schema) -> Batch:
    """Takes the shares and puts them together."""
    skipped = tuple(left_out for feed in feeds for left_out in feed.skipped)
    skipped_events = sum(feed.skipped_events for feed in feeds)
    for feed in feeds:
        feed.skipped, feed.skipped_events = [], 0
    taken = [part for feed, count in zip(feeds, shares, strict=True) if (part := feed.take(count, is_partial))]
    return replace(_join(taken, schema), skipped=skipped, skipped_events=skipped_events)


def _join(taken: Iterable[tuple[Range, Decoded]], schema: Schema) -> Batch:
    parts = sorted(taken, key=lambda part: part[0].partition)
    letters = tuple(
        DeadLetter(
            *(r.partition, bad.position.offset, bad.position.index, bad.reason, bad.payload),
            size=bad.size if bad.size > len(bad.payload) else None,
        )
        for r, decoded in parts
        for bad in decoded.rejects
    )
    samples = [decoded.samples for _, decoded in parts if len(decoded)]
    joined = join_samples(samples) if samples else no_samples(schema.fields, schema.dense)
    return Batch(tuple(r for r, _ in parts), joined, letters)


def form_batch(source: Source, schema: Schema, ranges: Sequence[Range], read_bytes: int = 1 << 20) -> Batch:
    """The batch that these ranges make: the very same samples and dead letters as when they were first formed."""
    decoder = _decoder_of(schema)
    return _join([(r, _decode_range(source, decoder, r, read_bytes)) for r in ranges], schema)


@lru_cache(maxsize=8)
def _decoder_of(schema: Schema) -> Decoder:
    """A replay forms many batches of one schema."""
    return Decoder(schema)


def _read_patiently(source: Source, partition: int, offset: int, read_bytes: int) -> list[Record]:
    """What the records are, from a source that may be silent for a while."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return source.read(partition, offset, read_bytes)
        except SourceUnavailable:
            if time.monotonic() > until:
                raise
            time.sleep(AGAIN_SECONDS)


def _decode_range(source: Source, decoder: Decoder, wanted: Range, read_bytes: int) -> Decoded:
    parts = [decoder.nothing(wanted.start)]
    while parts[-1].end < wanted.end:
        at = parts[-1].end
        records = [
            record
            for record in _read_patiently(source, wanted.partition, at.offset, read_bytes)
            if Position(record.offset) < wanted.end
        ]
        if not records:
            raise SourceError(
                f"cannot form a batch again: partition {wanted.partition} ends at {at.offset}, the manifest goes to "
                f"{wanted.end.offset}; expected the records it was formed from; restore the log"
            )
        parts.append(decoder.decode(records, at))
    decoded = join_decoded(parts)
    return cut(decoded, count_before(decoded, wanted.end), wanted.end)[0]

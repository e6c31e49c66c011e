"""Forms a batch again, exactly, from the ranges of its manifest."""

import time
from collections.abc import Callable, Sequence
from functools import lru_cache

from ingest.batches.batch import Batch, join_batch
from ingest.codec.decoder import Decoded, Decoder, count_before, join_decoded, split_at
from ingest.errors import SourceError, SourceUnavailable
from ingest.schema import Schema
from ingest.streams.position import Position, Range
from ingest.streams.source import Record, Source

PATIENCE_SECONDS = 60.0
"""How long a source that does not answer is polled for the records of a manifest."""
AGAIN_SECONDS = 0.05
"""Pause between two attempts."""
GoesOn = Callable[[], bool]
"""Waits a moment while a source does not answer, and returns whether to ask it again."""


def form_batch(
    source: Source,
    schema: Schema,
    ranges: Sequence[Range],
    read_bytes: int = 1 << 20,
    goes_on: GoesOn | None = None,
) -> Batch:
    """The batch of these ranges: the same samples and dead letters as when it was first formed.

    goes_on: None gives a source that does not answer a minute for each read; then SourceUnavailable is raised.
    """
    decoder = _decoder_of(schema)
    return join_batch([(r, _decode_range(source, decoder, r, read_bytes, goes_on)) for r in ranges], schema)


@lru_cache(maxsize=8)
def _decoder_of(schema: Schema) -> Decoder:
    """The decoder of a schema; cached, because a replay forms many batches of one schema."""
    return Decoder(schema)


def _decode_range(source: Source, decoder: Decoder, wanted: Range, read_bytes: int, goes_on: GoesOn | None) -> Decoded:
    parts = [decoder.nothing(wanted.start)]
    while parts[-1].end < wanted.end:
        at = parts[-1].end
        records = [
            record
            for record in _read_patiently(source, wanted.partition, at.offset, read_bytes, goes_on or _for_a_minute())
            if Position(record.offset) < wanted.end
        ]
        if not records:
            raise SourceError(
                f"cannot form a batch again: partition {wanted.partition} ends at {at.offset}, the manifest goes to "
                f"{wanted.end.offset}; expected the records it was formed from; restore the log"
            )
        parts.append(decoder.decode(records, at))
    decoded = join_decoded(parts)
    return split_at(decoded, count_before(decoded, wanted.end), wanted.end)[0]


def _read_patiently(source: Source, partition: int, offset: int, read_bytes: int, goes_on: GoesOn) -> list[Record]:
    """Records from a source that may be unavailable for a while."""
    while True:
        try:
            return source.read(partition, offset, read_bytes)
        except SourceUnavailable:
            if not goes_on():
                raise


def _for_a_minute() -> GoesOn:
    until = time.monotonic() + PATIENCE_SECONDS

    def goes_on() -> bool:
        time.sleep(AGAIN_SECONDS)
        return time.monotonic() < until

    return goes_on

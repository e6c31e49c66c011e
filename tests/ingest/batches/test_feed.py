"""The events of a partition that are in no batch yet."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ingest.batches import feed as feeds
from ingest.batches.feed import Feed
from ingest.batches.job import LoaderJob
from ingest.codec.decoder import Decoded, Decoder, join_decoded
from ingest.codec.json_events import encode_json
from ingest.log.embedded import LogReader, LogWriter
from ingest.streams.position import Position, Range
from ingest.streams.source import Record
from tests.ingest.topics import SYNTHETIC, events, write_json

EVENTS = 40


class Gaps(Decoder):
    """Finds nothing in every second record, as in one that holds no events."""

    def decode(self, records: Sequence[Record], start: Position, unknown: list[bytes] | None = None) -> Decoded:
        (record,) = records
        decoded = super().decode(records, start, unknown)
        return self.nothing(decoded.end) if record.offset % 2 else decoded


def opened(folder: Path, read_bytes: int, decoder: Decoder) -> Feed:
    write_json(folder, events(EVENTS), partitions=1)
    job = LoaderJob(SYNTHETIC, EVENTS, read_bytes=read_bytes)
    return Feed(LogReader(folder, "clicks"), decoder, job, 0, Position(0))


def test_what_many_reads_bring_is_not_joined_when_it_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: list[Decoded]) -> Decoded:
        pytest.fail("each join copies everything")

    monkeypatch.setattr(feeds, "join_decoded", refuse)
    feed = opened(tmp_path, 1, Decoder(SYNTHETIC))
    feed.fill(EVENTS)
    assert feed.ready == EVENTS
    taken = feed.take_events(EVENTS, is_partial=False)
    assert taken is not None
    assert [len(part) for part in taken[1] if len(part)] == [1] * EVENTS, "every read brings one record"


@pytest.mark.parametrize("counts", [(EVENTS,), (1,) * EVENTS, (3, 1, EVENTS - 4)])
@pytest.mark.parametrize("bad_every", [0, 2])
def test_reads_of_any_size_bring_the_same(tmp_path: Path, counts: tuple[int, ...], bad_every: int) -> None:
    """bad_every: so many good events lie between two bad ones."""
    writer = LogWriter(tmp_path, "clicks", 1)
    for number, event in enumerate(events(EVENTS)):
        if bad_every and number % bad_every == 0:
            writer.append(0, [(None, b"bad")])
        writer.append(0, [(None, encode_json(event))])
    writer.append(0, [(None, b"bad")])
    writer.close()
    few, many = (take_all(tmp_path, read_bytes, counts) for read_bytes in (1, 1 << 20))
    assert [taken[0] for taken in few] == [taken[0] for taken in many]
    for one, other in zip(few, many, strict=True):
        assert one[1].samples.equals(other[1].samples)
        assert np.array_equal(one[1].at_B, other[1].at_B)
        assert [bad.position for bad in one[1].rejects] == [bad.position for bad in other[1].rejects]
        assert one[1].end == other[1].end == one[0].end


def take_all(folder: Path, read_bytes: int, counts: tuple[int, ...]) -> list[tuple[Range, Decoded]]:
    job = LoaderJob(SYNTHETIC, EVENTS, read_bytes=read_bytes)
    feed = Feed(LogReader(folder, "clicks"), Decoder(SYNTHETIC), job, 0, Position(0))
    taken = []
    for place, count in enumerate(counts):
        feed.fill(EVENTS - sum(counts[:place]) + 1)  # one more than there are: reads to the end
        part = feed.take_events(count, is_partial=place == len(counts) - 1)
        assert part is not None
        taken.append((part[0], join_decoded(part[1])))
    assert not feed.has_something
    return taken


def test_reading_goes_on_after_a_record_without_events(tmp_path: Path) -> None:
    feed = opened(tmp_path, 1, Gaps(SYNTHETIC))
    for _ in range(EVENTS):
        feed.fill(feed.ready + 1)
    assert feed.unread.offset == EVENTS
    assert feed.is_at_end

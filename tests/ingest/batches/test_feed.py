"""The events of a partition that are in no batch yet."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ingest.batches import feed as feeds
from ingest.batches.feed import Feed
from ingest.batches.job import LoaderJob
from ingest.codec.decoder import Decoded, Decoder, join_decoded
from ingest.log.embedded import LogReader
from ingest.streams.position import Position
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


def test_what_many_reads_bring_is_joined_once_when_it_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[int] = []

    def join(parts: list[Decoded]) -> Decoded:
        joined.append(len(parts))
        return join_decoded(parts)

    monkeypatch.setattr(feeds, "join_decoded", join)
    feed = opened(tmp_path / "few", 1, Decoder(SYNTHETIC))
    feed.fill(EVENTS)
    assert (feed.ready, joined) == (EVENTS, [])
    taken = feed.take_events(EVENTS, is_partial=False)
    assert joined == [EVENTS], "every read brings one record"
    whole = opened(tmp_path / "all", 1 << 20, Decoder(SYNTHETIC))
    whole.fill(EVENTS)
    expected = whole.take_events(EVENTS, is_partial=False)
    assert taken is not None
    assert expected is not None
    assert taken[0] == expected[0]
    assert taken[1].samples.equals(expected[1].samples)
    assert np.array_equal(taken[1].at_B, expected[1].at_B)


def test_reading_goes_on_after_a_record_without_events(tmp_path: Path) -> None:
    feed = opened(tmp_path, 1, Gaps(SYNTHETIC))
    for _ in range(EVENTS):
        feed.fill(feed.ready + 1)
    assert feed.unread.offset == EVENTS
    assert feed.is_at_end

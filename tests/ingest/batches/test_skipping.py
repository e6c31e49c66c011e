"""What is left out on purpose: by the lag policy, or because retention was faster."""

from pathlib import Path

import pytest

from ingest.batches.batch import Batch
from ingest.batches.job import LoaderJob, OutOfRange
from ingest.batches.loader import Loader
from ingest.codec.json_events import encode_json
from ingest.codec.packed import PackedCodec
from ingest.convert import Converter
from ingest.errors import OffsetOutOfRange
from ingest.log.embedded import LogReader, LogWriter
from ingest.streams.position import Position, Range
from ingest.streams.source import Record
from tests.ingest.topics import SYNTHETIC, drain, events, write_json


def load(folder: Path, **options: object) -> list[Batch]:
    source = LogReader(folder, "clicks")
    options = {"start": {}, "stop_at_end": True, **options}
    batches = list(drain(Loader(source, LoaderJob(SYNTHETIC, 16, **options))))  # type: ignore[arg-type]
    source.close()
    return batches


def test_a_lag_within_the_bound_leaves_nothing_out(tmp_path: Path) -> None:
    write_json(tmp_path, events(64))
    batches = load(tmp_path, skip_above=64)
    assert sum(len(batch.samples) for batch in batches) == 64
    assert all(batch.skipped == () for batch in batches)


def test_a_lag_over_the_bound_is_skipped_and_counted_in_a_batch_of_its_own(tmp_path: Path) -> None:
    write_json(tmp_path, events(64))
    (batch,) = load(tmp_path, skip_above=63)
    assert len(batch.samples) == 0
    assert batch.skipped == (Range(0, Position(0), Position(32)), Range(1, Position(0), Position(32)))
    assert batch.skipped_events == 64


def test_what_comes_after_a_skip_is_trained(tmp_path: Path) -> None:
    write_json(tmp_path, events(64))
    source = LogReader(tmp_path, "clicks")
    loader = Loader(source, LoaderJob(SYNTHETIC, 16, linger_seconds=0.0, skip_above=40))
    first = loader.next(60)
    assert first is not None
    assert first.skipped_events == 64
    write_json(tmp_path, events(32))
    later = [loader.next(60), loader.next(60)]
    loader.close()
    source.close()
    trained = sum(len(batch.samples) for batch in later if batch is not None)
    assert trained == 32
    assert all(batch is not None and batch.skipped == () for batch in later)


class MeasuredFirst(LogReader):
    """Gives only records that were there when it was last asked how many there are: what waits is noticed first."""

    end = 0

    def span(self, partition: int) -> tuple[int, int]:
        first, self.end = super().span(partition)
        return first, self.end

    def read(self, partition: int, offset: int, max_bytes: int = 1 << 20) -> list[Record]:
        return [record for record in super().read(partition, offset, max_bytes) if record.offset < self.end]


def test_skipped_packed_records_count_with_the_events_of_those_read(tmp_path: Path) -> None:
    codec, (samples, _) = PackedCodec(SYNTHETIC), Converter(SYNTHETIC).convert_events(events(80))
    writer = LogWriter(tmp_path, "clicks", 1)
    records = [(None, codec.encode(samples.slice(at, at + 8))) for at in range(0, 80, 8)]
    writer.append(0, records[:2])
    source = MeasuredFirst(tmp_path, "clicks")
    loader = Loader(source, LoaderJob(SYNTHETIC, 16, linger_seconds=0.0, skip_above=40))
    batches = [loader.next(60)]
    writer.append(0, records[2:])
    batches.append(loader.next(60))
    loader.close()
    assert [None if batch is None else (len(batch.samples), batch.skipped_events) for batch in batches] == [
        (16, 0),
        (0, 64),
    ]
    source.close()
    writer.close()


def short_log(folder: Path) -> tuple[int, int]:
    """A log that retention has cut; returns what it holds."""
    writer = LogWriter(folder, "clicks", 1, segment_bytes=4096, retention_bytes=8192)
    for event in events(60):
        writer.append(0, [(None, encode_json(event))])
    writer.close()
    source = LogReader(folder, "clicks")
    span = source.span(0)
    source.close()
    assert span[0] > 0
    return span


def test_records_removed_by_retention_stop_the_loader(tmp_path: Path) -> None:
    short_log(tmp_path)
    with pytest.raises(OffsetOutOfRange):
        load(tmp_path, start={0: Position(0)})


@pytest.mark.parametrize("policy", ["earliest", "newest"])
def test_records_removed_by_retention_are_skipped_where_the_policy_says_so(tmp_path: Path, policy: OutOfRange) -> None:
    first, end = short_log(tmp_path)
    batches = load(tmp_path, start={0: Position(0)}, on_out_of_range=policy)
    to = first if policy == "earliest" else end
    assert batches[0].skipped == (Range(0, Position(0), Position(to)),)
    assert sum(batch.skipped_events for batch in batches) == to
    assert sum(len(batch.samples) for batch in batches) == end - to


def test_a_record_beyond_the_end_is_never_skipped_back_to(tmp_path: Path) -> None:
    write_json(tmp_path, events(8), partitions=1)
    with pytest.raises(OffsetOutOfRange):
        load(tmp_path, start={0: Position(9)}, on_out_of_range="earliest")

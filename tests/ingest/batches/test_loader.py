import itertools
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infra.base.process import Stop
from ingest.batches.batch import Batch, join_batch
from ingest.batches.feed import MANY_REJECTED_BYTES, MANY_REJECTS
from ingest.batches.job import LoaderJob
from ingest.batches.loader import Loader
from ingest.codec.json_events import JsonCodec, encode_json
from ingest.codec.packed import PackedCodec
from ingest.errors import OffsetOutOfRange, SourceError
from ingest.letters.embedded import DeadLetterLog, read_dead_letters
from ingest.log.embedded import LogReader, LogWriter
from ingest.producing.encoder import Encoder
from ingest.producing.producer import produce
from ingest.samples import join_samples
from ingest.streams.position import Position, Range
from tests.ingest.batches.loading import load, poisoned
from tests.ingest.topics import SYNTHETIC, drain, ends, events, write_json


class CountingSource(LogReader):
    """A log that counts its reads, and can be made to fail."""

    reads = 0
    fails = False

    def read(self, partition: int, offset: int, max_bytes: int = 1 << 20) -> list:  # type: ignore[type-arg]
        self.reads += 1
        if self.fails:
            raise SourceError("the source is gone")
        return super().read(partition, offset, max_bytes)


def test_batches_hold_every_event_once_in_order(tmp_path: Path) -> None:
    given_events = events(1000)
    write_json(tmp_path, given_events)
    batches = load(tmp_path, 64)
    assert [len(b.samples) for b in batches] == [64] * 15 + [40]
    expected, _ = JsonCodec(SYNTHETIC).decode([encode_json(e) for e in given_events])
    times = np.concatenate([b.samples.times_B for b in batches])
    assert sorted(times.tolist()) == expected.times_B.tolist()


def test_batches_grow_with_the_samples_before_them(tmp_path: Path) -> None:
    write_json(tmp_path, events(1000))
    growing = LoaderJob(SYNTHETIC, 100, stop_at_end=True, first_batch=10, batch_growth=8)
    sizes = [len(b.samples) for b in drain(Loader(LogReader(tmp_path, "clicks"), growing))]
    assert sizes[:10] == [10] * 8 + [10, 11]
    seen = np.cumsum([0, *sizes])
    assert sizes[:-1] == [growing.batch_after(int(before)) for before in seen[:-2]]
    assert max(sizes) == 100


def test_a_loader_that_begins_later_goes_on_with_the_sizes(tmp_path: Path) -> None:
    write_json(tmp_path, events(1000))
    growing = LoaderJob(SYNTHETIC, 100, stop_at_end=True, first_batch=10, batch_growth=8)
    whole = list(drain(Loader(LogReader(tmp_path, "clicks"), growing)))
    start = {r.partition: r.end for batch in whole[:12] for r in batch.ranges}
    later = replace(growing, start=start, seen=sum(len(batch.samples) for batch in whole[:12]))
    again = list(drain(Loader(LogReader(tmp_path, "clicks"), later)))
    assert [batch.ranges for batch in again] == [batch.ranges for batch in whole[12:]]


def test_samples_of_a_batch_stand_by_partition_then_position(tmp_path: Path) -> None:
    given_events = events(100)
    write_json(tmp_path, given_events)
    batch = load(tmp_path, 10)[0]
    expected, _ = JsonCodec(SYNTHETIC).decode([encode_json(e) for e in given_events[0:10:2] + given_events[1:10:2]])
    assert batch.samples.equals(expected)
    assert batch.ranges == (Range(0, Position(0), Position(5)), Range(1, Position(0), Position(5)))


def test_same_log_gives_the_same_batches(tmp_path: Path) -> None:
    write_json(tmp_path, events(700), partitions=3)
    first, second = load(tmp_path, 50), load(tmp_path, 50)
    assert [b.ranges for b in first] == [b.ranges for b in second]
    assert all(a.samples.equals(b.samples) for a, b in zip(first, second, strict=True))


def test_batch_of_one_takes_partitions_in_turn(tmp_path: Path) -> None:
    write_json(tmp_path, events(6))
    assert [b.ranges[0].partition for b in load(tmp_path, 1)] == [0, 1, 0, 1, 0, 1]


def test_other_partitions_fill_in_for_a_short_one(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, "clicks", 2)
    payloads = [(None, encode_json(e)) for e in events(110)]
    writer.append(0, payloads[:10])
    writer.append(1, payloads[10:])
    writer.close()
    batches = load(tmp_path, 50)
    assert [[r.end.offset - r.start.offset for r in b.ranges] for b in batches] == [[10, 40], [50], [10]]


def test_limit_is_met_exactly(tmp_path: Path) -> None:
    write_json(tmp_path, events(300))
    assert [len(b.samples) for b in load(tmp_path, 64, limit=150)] == [64, 64, 22]


def test_loading_goes_on_where_the_last_batch_ended(tmp_path: Path) -> None:
    write_json(tmp_path, events(300))
    whole = load(tmp_path, 32)
    rest = load(tmp_path, 32, start=ends(whole[:4]))
    assert [b.ranges for b in rest] == [b.ranges for b in whole[4:]]


def test_packed_records_are_split_over_batches(tmp_path: Path) -> None:
    codec, given_events = PackedCodec(SYNTHETIC), events(100)
    writer = LogWriter(tmp_path, "clicks", 1)
    writer.append(0, [(None, codec.encode_events(given_events[at : at + 25])) for at in range(0, 100, 25)])
    writer.close()
    batches = load(tmp_path, 40)
    assert [b.ranges[0].end for b in batches] == [Position(1, 15), Position(3, 5), Position(4)]
    assert join_samples([b.samples for b in batches]).equals(codec.decode([codec.encode_events(given_events)])[0])


@pytest.mark.parametrize("samples_per_record", [0, 16])
def test_produced_equals_trained_and_dead_lettered(tmp_path: Path, samples_per_record: int) -> None:
    batches, bad = poisoned(tmp_path, samples_per_record)
    assert bad > 0
    assert sum(len(b.samples) for b in batches) == 600
    assert sum(len(b.dead_letters) for b in batches) == bad


@pytest.mark.parametrize("samples_per_record", [0, 16])
def test_ranges_join_without_gap_or_overlap(tmp_path: Path, samples_per_record: int) -> None:
    batches, _ = poisoned(tmp_path, samples_per_record)
    reader = LogReader(tmp_path, "clicks")
    for partition in (0, 1):
        ranges = [r for b in batches for r in b.ranges if r.partition == partition]
        assert [r.start for r in ranges] == [Position(0), *[r.end for r in ranges[:-1]]]
        assert ranges[-1].end == Position(reader.span(partition)[1])
    reader.close()


def test_bad_events_do_not_change_the_good_ones(tmp_path: Path) -> None:
    batches, _ = poisoned(tmp_path / "bad", 0)
    writer = LogWriter(tmp_path / "good", "clicks", 2)
    produce(events(600), writer, Encoder(SYNTHETIC, writer.partitions), Stop())
    writer.close()
    clean = load(tmp_path / "good", 64)
    assert all(a.samples.equals(b.samples) for a, b in zip(batches, clean, strict=True))


def test_bad_events_do_not_count_towards_the_limit(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, "clicks", 1)
    writer.append(0, [(None, encode_json(e)) for e in events(4)] + [(None, b"bad")] * 4)
    writer.append(0, [(None, encode_json(e)) for e in events(8)])
    writer.close()
    assert sum(len(batch.samples) for batch in load(tmp_path, batch=2, limit=10)) == 10


def test_dead_letters_are_written_once_when_batches_come_again(tmp_path: Path) -> None:
    batches, bad = poisoned(tmp_path, 0)
    for again in (batches[:5], batches[2:]):
        log = DeadLetterLog(tmp_path)
        for batch in again:
            log.append(batch.dead_letters)
        log.close()
    letters = [(d.partition, d.offset, d.index) for d in read_dead_letters(tmp_path)]
    assert len(letters) == len(set(letters)) == bad


def test_poison_alone_comes_out_as_dead_letters_without_samples(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, "clicks", 1)
    writer.append(0, [(None, b"bad")] * 5)
    writer.close()
    batch = load(tmp_path)[0]
    assert (len(batch.samples), len(batch.dead_letters)) == (0, 5)
    assert batch.samples.keys_BF.shape == (0, SYNTHETIC.fields)


def test_flood_of_poison_in_one_partition_does_not_starve_its_good_events(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, "clicks", 2)
    good = [(None, encode_json(e)) for e in events(200)]
    writer.append(0, [(None, b"")] * (3 * MANY_REJECTS) + good[:100])
    writer.append(1, good[100:])
    writer.close()
    source = LogReader(tmp_path, "clicks")
    batches = list(drain(Loader(source, LoaderJob(SYNTHETIC, 10, stop_at_end=True, read_bytes=65536))))
    assert max(len(b.dead_letters) for b in batches) < 2 * MANY_REJECTS
    assert sum(len(b.dead_letters) for b in batches) == 3 * MANY_REJECTS
    assert len(batches[5].ranges) == 2


def test_partial_batch_goes_out_after_lingering(tmp_path: Path) -> None:
    write_json(tmp_path, events(7))
    loader = Loader(LogReader(tmp_path, "clicks"), LoaderJob(SYNTHETIC, 64, linger_seconds=0.0))
    batch = loader.next(timeout=60)
    assert batch is not None
    assert (len(batch.samples), loader.ended) == (7, False)
    loader.close()


class Timetable(LogReader):
    """A log whose records appear at given times; each read takes a second."""

    def __init__(self, folder: Path, times: list[int]) -> None:
        super().__init__(folder, "clicks")
        self.times, self.now = times, 0

    def monotonic(self) -> float:
        return float(self.now)

    def read(self, partition: int, offset: int, max_bytes: int = 1 << 20) -> list:  # type: ignore[type-arg]
        self.now += 1
        there = sum(time <= self.now for time in self.times)
        return super().read(partition, offset, max_bytes)[: max(0, there - offset)]


def test_lingering_begins_anew_with_every_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(tmp_path, events(4), partitions=1)
    source = Timetable(tmp_path, [1, 9, 9, 17])
    monkeypatch.setattr("ingest.batches.forming.time", source)
    loader = Loader(source, LoaderJob(SYNTHETIC, 2, linger_seconds=10, limit=4))
    assert [len(batch.samples) for batch in drain(loader)] == [2, 2]


def test_later_events_and_partitions_are_seen(tmp_path: Path) -> None:
    loader = Loader(LogReader(tmp_path, "clicks"), LoaderJob(SYNTHETIC, 8, linger_seconds=3600))
    for partition in (0, 1):
        writer = LogWriter(tmp_path, "clicks", [partition])
        writer.append(partition, [(None, encode_json(e)) for e in events(8)])
        batch = loader.next(timeout=60)
        assert batch is not None
        assert [r.partition for r in batch.ranges] == [partition]
        writer.close()
    loader.close()


def test_loader_stops_reading_when_nobody_takes_batches(tmp_path: Path) -> None:
    write_json(tmp_path, events(2000), partitions=1)
    source = CountingSource(tmp_path, "clicks")
    loader = Loader(source, LoaderJob(SYNTHETIC, 10, prefetch=3, read_bytes=1024, stop_at_end=True))
    assert loader.next(timeout=60) is not None
    while loader._prefetcher._waiting.qsize() < 3:
        assert loader._prefetcher.goes_on
    assert loader._lag.formed <= 10 * (1 + 3 + 1)  # one was taken, one waits for room
    assert source.reads < 40
    assert sum(len(b.samples) for b in drain(loader)) == 1990
    assert source.reads > 200


def test_error_of_the_source_is_raised_by_next(tmp_path: Path) -> None:
    write_json(tmp_path, events(10))
    source = CountingSource(tmp_path, "clicks")
    source.fails = True
    loader = Loader(source, LoaderJob(SYNTHETIC, 4))
    for _ in range(2):
        with pytest.raises(SourceError, match="the source is gone"):
            loader.next(timeout=60)
    loader.close()


def test_position_that_retention_removed_stops_loudly(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, "clicks", 1, segment_bytes=4096, retention_bytes=8192)
    for event in events(200):
        writer.append(0, [(None, encode_json(event))])
    writer.close()
    with pytest.raises(OffsetOutOfRange, match="record 3"):
        load(tmp_path, start={0: Position(3)})


def test_new_run_begins_at_the_first_retained_record(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, "clicks", 1, segment_bytes=4096, retention_bytes=8192)
    for event in events(200):
        writer.append(0, [(None, encode_json(event))])
    writer.close()
    batches = load(tmp_path)
    assert batches[0].ranges[0].start.offset > 0
    assert ends(batches) == {0: Position(200)}


def test_partition_unknown_to_a_run_that_goes_on_is_read_from_its_beginning(tmp_path: Path) -> None:
    write_json(tmp_path, events(20))
    assert load(tmp_path, start={0: Position(4)})[0].ranges[1].start == Position(0)


def test_an_error_while_batches_are_joined_is_raised_by_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Batch:
        raise MemoryError("no room for the batch")

    monkeypatch.setattr("ingest.batches.batch.join_batch", fail)
    write_json(tmp_path, events(100))
    loader = Loader(LogReader(tmp_path, "clicks"), LoaderJob(SYNTHETIC, 4))
    for _ in range(2):
        with pytest.raises(MemoryError, match="no room for the batch"):
            loader.next(timeout=60)
    loader.close()
    assert not loader._prefetcher.goes_on


def test_batches_come_in_their_order_whichever_is_joined_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later = threading.Event()
    joins = itertools.count()

    def join_slowly(*arguments: Any) -> Batch:
        if next(joins):
            later.set()
        else:
            assert later.wait(60)
        return join_batch(*arguments)

    monkeypatch.setattr("ingest.batches.batch.join_batch", join_slowly)
    write_json(tmp_path, events(20), partitions=1)
    batches = drain(Loader(LogReader(tmp_path, "clicks"), LoaderJob(SYNTHETIC, 5, stop_at_end=True)))
    assert [batch.ranges[0].start.offset for batch in batches] == [0, 5, 10, 15]


def test_a_batch_that_is_not_joined_in_time_comes_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_join = threading.Event()

    def join_late(*arguments: Any) -> Batch:
        assert may_join.wait(60)
        return join_batch(*arguments)

    monkeypatch.setattr("ingest.batches.batch.join_batch", join_late)
    write_json(tmp_path, events(5))
    loader = Loader(LogReader(tmp_path, "clicks"), LoaderJob(SYNTHETIC, 5, stop_at_end=True))
    while loader._lag.formed < 5:
        assert loader.next(timeout=0.01) is None
    assert (loader.next(timeout=0.01), loader.ended) == (None, False)
    may_join.set()
    assert [len(batch.samples) for batch in drain(loader)] == [5]


def test_closing_ends_the_threads_and_a_waiting_next(tmp_path: Path) -> None:
    loader = Loader(LogReader(tmp_path, "clicks"), LoaderJob(SYNTHETIC, 10))
    found: list[Batch | None] = []
    waiter = threading.Thread(target=lambda: found.append(loader.next()))
    waiter.start()
    loader.close()
    waiter.join(timeout=60)
    assert (found, loader.ended) == ([None], True)
    threads = [loader._prefetcher._reader, *loader._prefetcher._joiners._threads]
    assert not any(thread.is_alive() for thread in threads)


def test_large_bad_events_come_in_batches_of_bounded_size(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, "clicks", 1)
    for _ in range(20):
        writer.append(0, [(None, b"x" * (1 << 20))])
    writer.close()
    source = LogReader(tmp_path, "clicks")
    batches = list(drain(Loader(source, LoaderJob(SYNTHETIC, 8, stop_at_end=True))))
    source.close()
    sizes = [sum(len(letter.payload) for letter in batch.dead_letters) for batch in batches]
    assert sum(len(batch.dead_letters) for batch in batches) == 20
    assert max(sizes) <= MANY_REJECTED_BYTES + (1 << 20)
    assert {letter.size for batch in batches for letter in batch.dead_letters} == {1 << 20}

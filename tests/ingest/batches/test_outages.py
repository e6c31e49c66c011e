"""A source that cannot answer now is not one that has ended."""

import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ingest.batches.job import LoaderJob
from ingest.batches.loader import Loader
from ingest.batches.replay import form_batch
from ingest.errors import SourceError, SourceUnavailable
from ingest.kafka.clients.base import TopicSnapshot
from ingest.kafka.config import KafkaConfig
from ingest.kafka.source import KafkaSource
from ingest.log.embedded import LogReader
from ingest.streams.position import Position, Range
from tests.ingest.topics import SYNTHETIC, drain, events, write_json


class Faltering(LogReader):
    """A log that answers half of the questions."""

    refused = 0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "clicks")
        self._random = Random(3)

    def falter(self) -> None:
        if self._random.random() < 0.5:
            self.refused += 1
            raise SourceUnavailable("not now")

    def partitions(self) -> list[int]:
        self.falter()
        return super().partitions()

    def span(self, partition: int) -> tuple[int, int]:
        self.falter()
        return super().span(partition)

    def read(self, partition: int, offset: int, max_bytes: int = 1 << 20) -> Any:
        self.falter()
        return super().read(partition, offset, max_bytes)


@pytest.mark.parametrize("stop_at_end", [True, False])
def test_every_event_comes_from_a_source_that_falters(tmp_path: Path, stop_at_end: bool) -> None:
    write_json(tmp_path, events(100))
    source = Faltering(tmp_path)
    job = LoaderJob(SYNTHETIC, 16, linger_seconds=0.0, limit=100, stop_at_end=stop_at_end, read_bytes=1024)
    assert sum(len(batch.samples) for batch in drain(Loader(source, job))) == 100
    assert source.refused > 10
    source.close()


class Breaking(LogReader):
    """A log that answers nothing any more once one record has been read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "clicks")
        self._reads = 0
        self.has_broken, self.was_asked_again = threading.Event(), threading.Event()

    def span(self, partition: int) -> tuple[int, int]:
        if self.has_broken.is_set():
            self.was_asked_again.set()
            raise SourceError("broken")
        return super().span(partition)

    def read(self, partition: int, offset: int, max_bytes: int = 1 << 20) -> Any:
        self._reads += 1
        if self._reads > 1:
            self.has_broken.set()
            raise SourceError("broken")
        return super().read(partition, offset, max_bytes)


def test_a_source_that_breaks_while_a_batch_waits_is_told_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingest.batches.prefetcher.REFRESH_SECONDS", 0.01)
    write_json(tmp_path, events(100))
    source = Breaking(tmp_path)
    loader = Loader(source, LoaderJob(SYNTHETIC, 1, prefetch=1, read_bytes=1))
    assert source.has_broken.wait(60)
    assert not source.was_asked_again.wait(0.2)
    assert loader.next(10) is not None
    with pytest.raises(SourceError, match="broken"):
        loader.next(10)
    source.close()


class Silent:
    """A consumer whose broker describes a topic and then does not answer any more."""

    def describe(self, seconds: float) -> TopicSnapshot:
        return TopicSnapshot("identity", (0,))

    def spans(self, partitions: object, seconds: float) -> None:
        raise SourceUnavailable("cannot find the ends of partitions")

    def close(self) -> None:
        self.is_closed = True


def test_an_outage_is_waited_out_without_a_limit_and_ends_the_run_with_one() -> None:
    waits = KafkaSource(KafkaConfig(), "clicks", Silent())  # type: ignore[arg-type]
    for _ in range(3):
        with pytest.raises(SourceUnavailable) as caught:
            waits.span(0)
    assert "a moment ago" in str(caught.value)  # the broker is not asked by every partition in turn
    limited = KafkaSource(KafkaConfig(outage_seconds=0), "clicks", Silent())  # type: ignore[arg-type]
    with pytest.raises(SourceUnavailable):
        limited.span(0)
    limited._ask_again_at = 0.0
    with pytest.raises(SourceError, match=r"has not answered for 0 s: .*kafka\.outage_seconds = 0; start the broker"):
        limited.span(0)


def test_a_batch_is_formed_again_from_a_source_that_falters(tmp_path: Path) -> None:
    write_json(tmp_path, events(32))
    source, ranges = Faltering(tmp_path), (Range(0, Position(0), Position(16)), Range(1, Position(3), Position(16)))
    assert len(form_batch(source, SYNTHETIC, ranges, read_bytes=512).samples) == 29
    assert source.refused > 3
    source.close()

from pathlib import Path

import pytest

from ingest.batches.job import LoaderJob
from ingest.batches.loader import Loader
from ingest.codec.json_events import encode_json
from ingest.log.embedded import LogReader, LogWriter
from tests.ingest.topics import SYNTHETIC, drain, events, write_json


def test_lag_counts_events_not_handed_out(tmp_path: Path) -> None:
    write_json(tmp_path, events(100))
    loader = Loader(LogReader(tmp_path, "clicks"), LoaderJob(SYNTHETIC, 10, prefetch=1, stop_at_end=True))
    assert loader.next(timeout=60) is not None
    assert loader.lag() == 90
    assert len(list(drain(loader))) == 9
    assert loader.lag() == 0


def test_lag_counts_bad_events_until_they_are_handed_out(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, "clicks", 1)
    writer.append(0, [(None, encode_json(events(1)[0])), (None, b"bad"), (None, b"worse")])
    writer.close()
    loader = Loader(LogReader(tmp_path, "clicks"), LoaderJob(SYNTHETIC, 10, stop_at_end=True))
    assert len(list(drain(loader))) == 1
    assert loader.lag() == 0


def test_lag_grows_while_nobody_takes_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingest.batches.prefetcher.REFRESH_SECONDS", 0.01)
    write_json(tmp_path, events(10), partitions=1)
    loader = Loader(LogReader(tmp_path, "clicks"), LoaderJob(SYNTHETIC, 1, prefetch=1))
    while loader._lag.formed < 2:  # one waits to be taken, one for room
        assert loader._prefetcher.goes_on
    write_json(tmp_path, events(5), partitions=1)
    while loader.lag() != 15:
        assert loader._prefetcher.goes_on
    assert loader._lag.formed == 2
    loader.close()

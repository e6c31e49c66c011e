from pathlib import Path

import msgspec
import numpy as np
import pytest
from structlog.testing import capture_logs

from ingest.batches.absent import Absence, FieldWatch
from ingest.batches.job import LoaderJob
from ingest.batches.loader import Loader
from ingest.codec.json_events import encode_json
from ingest.errors import AbsentField
from ingest.log.embedded import LogReader
from ingest.schema import load_schema, parse_schema
from tests.ingest.topics import SYNTHETIC, drain, events, write_json

TWO = parse_schema('name = "two"\ntables = [{name = "user"}, {name = "banner"}]', "two")
MISSPELT = msgspec.json.encode({"event_time": 1, "label": 0, "fields": {"user": "u", "baner": "b1", "zzz": [1]}})


def add(watch: FieldWatch, samples: int, user: int, banner: int) -> None:
    watch.add(samples, np.array([user, banner]), [MISSPELT, b"no event"])


def test_a_field_absent_from_the_first_events_is_told_once_with_what_they_hold() -> None:
    watch = FieldWatch(TWO, 100)
    with capture_logs() as logs:
        for _ in range(5):
            add(watch, 50, user=50, banner=0)
    (line,) = logs
    assert line["log_level"] == "warning"
    assert "fields banner of schema 'two' are absent from all of the first 100 events" in line["event"]
    assert watch.absence == Absence(("banner",), ('baner ("b1"; meant for banner?)', "zzz ([1])"))
    assert watch.shares() == {"user": 1.0, "banner": 0.0}


def test_a_field_that_comes_again_is_absent_no_more() -> None:
    watch = FieldWatch(TWO, 100)
    add(watch, 100, user=100, banner=0)
    add(watch, 100, user=100, banner=1)
    assert watch.absence == Absence()


@pytest.mark.parametrize(("before", "absent"), [(100, ("banner",)), (19, ())])
def test_a_common_field_that_vanishes_is_told_and_a_rare_one_is_not(before: int, absent: tuple[str, ...]) -> None:
    watch = FieldWatch(TWO, 100)
    with capture_logs() as logs:
        add(watch, 100, user=100, banner=before)
        add(watch, 100, user=100, banner=0)
        add(watch, 100, user=100, banner=0)
    assert watch.absence.fields == absent
    assert len(logs) == len(absent)
    assert all("absent from the latest 100 events, and were in those before" in line["event"] for line in logs)


def test_no_field_is_absent_before_a_window_is_full() -> None:
    watch = FieldWatch(TWO, 100, "stop")
    assert watch.shares() == {}
    add(watch, 99, user=0, banner=0)
    assert watch.absence == Absence()
    with pytest.raises(AbsentField, match=r"fields user, banner of .*set stream\.on_absent_field=warn"):
        add(watch, 1, user=0, banner=0)


def test_what_events_hold_cannot_write_to_a_terminal() -> None:
    payload = msgspec.json.encode({"event_time": 1, "label": 0, "fields": {"\x1b[31m": "\x9b2J", "n" * 99: "v" * 99}})
    watch = FieldWatch(TWO, 1)
    watch.add(1, np.array([0, 0]), [payload])
    assert all(text.isprintable() and len(text) < 90 for text in watch.absence.unknown)
    assert len(watch.absence.unknown) == 2


def test_a_job_that_stops_hands_out_nothing_of_events_that_lack_a_field(tmp_path: Path) -> None:
    write_json(tmp_path, events(300))
    loader = Loader(LogReader(tmp_path, "clicks"), LoaderJob(load_schema("criteo"), 16, look_at=100))
    with pytest.raises(AbsentField, match=r'C1, .* and 31 more .*they hold user \("u\d+"\), item'):
        loader.next(timeout=60)
    loader.close()


@pytest.mark.parametrize("look_at", [None, 10, 150, 10_000])
def test_looking_first_changes_no_batch(tmp_path: Path, look_at: int | None) -> None:
    write_json(tmp_path, events(300), partitions=3)
    job = LoaderJob(SYNTHETIC, 64, stop_at_end=True, look_at=look_at, read_bytes=2048)
    plain = LoaderJob(SYNTHETIC, 64, stop_at_end=True)
    looked, expected = (list(drain(Loader(LogReader(tmp_path, "clicks"), each))) for each in (job, plain))
    assert [batch.ranges for batch in looked] == [batch.ranges for batch in expected]


def test_looking_waits_no_longer_than_a_batch_may_linger(tmp_path: Path) -> None:
    write_json(tmp_path, events(20))
    job = LoaderJob(SYNTHETIC, 64, linger_seconds=0.0, look_at=100)
    loader = Loader(LogReader(tmp_path, "clicks"), job)
    batch = loader.next(timeout=60)
    assert batch is not None
    assert len(batch.samples) == 20
    loader.close()


def test_examples_are_records_as_they_came(tmp_path: Path) -> None:
    given = events(4)
    write_json(tmp_path, given, partitions=1)
    (batch,) = drain(Loader(LogReader(tmp_path, "clicks"), LoaderJob(SYNTHETIC, 64, stop_at_end=True)))
    assert list(batch.examples) == [encode_json(event) for event in given]
    assert batch.present_S.tolist() == [4] * 3 + [sum(bool(e.fields["tags"]) for e in given)] + [4] * 5

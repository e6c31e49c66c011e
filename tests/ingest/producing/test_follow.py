"""A followed file while it grows, is rotated and is truncated, and what a producer writes of it."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.base.errors import ConfigError
from infra.base.process import Stop
from ingest.config import StreamConfig
from ingest.log.embedded import LogReader
from ingest.main import ProducerJob, run_producer
from ingest.producing.follow import FollowedFile
from ingest.producing.producer import Produced


def now(lines: Iterator[bytes | None]) -> list[bytes]:
    """The lines that are there, up to the first pause."""
    found = []
    while (line := next(lines)) is not None:
        found.append(line)
    return found


def after(lines: Iterator[bytes | None], pauses: int = 3) -> list[bytes]:
    """The lines up to a later pause: a change of the file is seen behind the first, and read behind the second."""
    return [line for _ in range(pauses) for line in now(lines)]


def append(path: Path, text: bytes) -> None:
    with path.open("ab") as file:
        file.write(text)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "clicks.jsonl").write_bytes(b"one\n\ntwo\r\nthr")
    return tmp_path / "clicks.jsonl"


def test_a_file_is_read_from_its_start_and_a_line_once_its_end_is_written(path: Path) -> None:
    followed = FollowedFile(path)
    lines = followed.lines()
    assert now(lines) == [b"one", b"two"]
    assert (followed.position, followed.is_at_end) == (len(b"one\n\ntwo\r\n"), True)
    append(path, b"ee\nfour\n")
    assert after(lines) == [b"three", b"four"]
    assert followed.position == path.stat().st_size


def test_a_rotated_file_is_read_to_its_end_and_then_the_new_one(path: Path) -> None:
    told: list[str] = []
    followed = FollowedFile(path, tell=told.append)
    lines = followed.lines()
    now(lines)
    old = path.rename(path.with_suffix(".1"))
    append(old, b"ee\nfour")  # by a writer that has it open
    assert after(lines) == [b"three"], "no file has the name: the old one is still followed"
    path.write_bytes(b"five\n")
    assert after(lines) == [b"four", b"five"]
    assert followed.position == len(b"five\n")
    assert told == [f"{path} is another file now; continues at its start"]


def test_a_truncated_file_is_read_from_its_start(path: Path) -> None:
    told: list[str] = []
    followed = FollowedFile(path, tell=told.append)
    lines = followed.lines()
    now(lines)
    os.truncate(path, 0)
    append(path, b"new\n")
    assert after(lines) == [b"thr", b"new"], "what had no end yet is not lost without a word"
    assert followed.position == len(b"new\n")
    assert told == [f"{path} was truncated; continues at its start"]


@pytest.mark.parametrize("start", [1, 11, 14, 100])
def test_a_byte_at_which_no_line_begins_is_refused(path: Path, start: int) -> None:
    with pytest.raises(ConfigError, match=rf"no line of .* begins at byte {start}: it has 13 bytes; .*--from-byte"):
        FollowedFile(path, start).check()


@pytest.mark.parametrize(("dataset", "name"), [("criteo", "clicks.jsonl"), ("jsonl", "-"), ("jsonl", "clicks.gz")])
def test_what_cannot_be_followed_is_refused(path: Path, dataset: str, name: str) -> None:
    (path.parent / "clicks.gz").touch()
    file = Path(name) if name == "-" else path.parent / name
    with pytest.raises(ConfigError, match="cannot be followed; expected a plain file of lines"):
        ProducerJob(StreamConfig(), dataset=dataset, path=file, follows=True).check()
    with pytest.raises(ConfigError, match="--from-byte is given without --follow"):
        ProducerJob(StreamConfig(), dataset="jsonl", path=path, from_byte=4).check()


def test_a_producer_that_goes_on_at_the_byte_it_named_writes_every_line_once(tmp_path: Path) -> None:
    path, stream = tmp_path / "clicks.jsonl", StreamConfig(folder=tmp_path / "log", partitions=1)
    expected = [f'{{"number": {number}}}'.encode() for number in range(5000)]
    path.write_bytes(b"".join(line + b"\n" for line in expected[:3000]) + expected[3000][:5])
    first = follow_until(3000, ProducerJob(stream, dataset="jsonl", path=path, follows=True))
    assert first.read_to == path.stat().st_size - 5
    append(path, expected[3000][5:] + b"\n" + b"".join(line + b"\n" for line in expected[3001:]))
    second = ProducerJob(stream, dataset="jsonl", path=path, follows=True, from_byte=first.read_to or 0)
    follow_until(2000, second)
    reader = LogReader(tmp_path / "log", "clicks")
    written, at = list[bytes](), 0
    while records := reader.read(0, at):
        written += [record.payload for record in records]
        at = records[-1].offset + 1
    reader.close()
    assert written == expected


def follow_until(events: int, job: ProducerJob) -> Produced:
    """Runs a producer until it has written so many events and waits for more."""
    stop = Stop()

    def show(so_far: Produced) -> None:
        if so_far.is_waiting and so_far.events == events:
            stop.request("test")

    give_up = threading.Timer(120, lambda: stop.request("too late"))
    give_up.start()
    done = run_producer(job, stop, show)
    give_up.cancel()
    assert (done.events, done.reason) == (events, "test")
    return done

"""A loader in a process of its own hands out what one in this process does, and tells how it ended."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from infra.base.errors import ConfigError, ProcessFailed
from infra.run.supervision.nursery import as_started
from ingest.batches.batch import Batch
from ingest.batches.forked import ForkedLoader
from ingest.batches.job import LoaderJob
from ingest.batches.loader import Loader
from ingest.errors import AbsentField, OffsetOutOfRange
from ingest.log.embedded import LogReader, LogWriter
from ingest.schema import load_schema
from ingest.streams.position import Position
from tests.end_to_end.processes import ROOT, wait_until
from tests.ingest.batches.loading import poisoned
from tests.ingest.batches.test_slots import assert_equal
from tests.ingest.topics import SYNTHETIC, events, write_json

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")

PARENT = """
import sys, time
from functools import partial
from pathlib import Path
from ingest.batches.forked import ForkedLoader
from ingest.batches.job import LoaderJob
from ingest.log.embedded import LogReader
from tests.ingest.topics import SYNTHETIC
loader = ForkedLoader(partial(LogReader, Path(sys.argv[1]), "clicks"), SYNTHETIC, 8, 2, "a loader of a test")
loader.begin(LoaderJob(SYNTHETIC, 8))
assert loader.next(60) is not None
print(loader._pid, flush=True)
time.sleep(600)
"""


@contextmanager
def forked(opening: Callable[[], Any], batch: int = 8, prefetch: int = 4, **options: Any) -> Iterator[ForkedLoader]:
    loader = ForkedLoader(opening, SYNTHETIC, batch, prefetch, "a loader of a test")
    schema = options.pop("schema", SYNTHETIC)
    with closing(loader.begin(LoaderJob(schema, batch, prefetch=prefetch, **options))):
        yield loader


def log_in(folder: Path) -> Callable[[], LogReader]:
    return partial(LogReader, folder, "clicks")


def taken(loader: ForkedLoader) -> list[Batch]:
    batches = []
    while (batch := loader.next(60)) is not None:
        batches.append(batch)
    assert loader.ended
    return batches


def pid_of(loader: ForkedLoader) -> int:
    assert loader._pid is not None
    return loader._pid


@pytest.mark.parametrize("prefetch", [1, 4])
@pytest.mark.parametrize("room", [64, 1], ids=["slots", "larger than slots"])
def test_batches_are_those_of_a_loader_in_this_process(tmp_path: Path, prefetch: int, room: int) -> None:
    expected, bad = poisoned(tmp_path, 5)
    loader = ForkedLoader(log_in(tmp_path), SYNTHETIC, room, prefetch, "a loader of a test")
    with closing(loader.begin(LoaderJob(SYNTHETIC, 64, prefetch=prefetch, stop_at_end=True))):
        found = taken(loader)  # all are kept, more than there are slots
    assert len(found) == len(expected) > prefetch + 4
    assert sum(len(batch.dead_letters) for batch in found) == bad > 0
    for mine, theirs in zip(found, expected, strict=True):
        assert_equal(mine, theirs)


def test_slots_are_used_again(tmp_path: Path) -> None:
    write_json(tmp_path, events(400))
    with forked(log_in(tmp_path), stop_at_end=True) as loader:
        loader._connection.poll(60)
        places = set()
        while (batch := loader.next(60)) is not None:
            places.add(batch.keys.keys_U.__array_interface__["data"][0])
            del batch
        assert 1 < len(places) <= loader._slots.count


def test_no_more_batches_wait_than_were_asked_for(tmp_path: Path) -> None:
    write_json(tmp_path, events(400))
    with forked(log_in(tmp_path), prefetch=3) as loader:
        wait_until(lambda: loader.lag() == 400 and len(loader._formed) == 3)
        time.sleep(0.3)
        assert loader.lag() == 400
        assert len(loader._formed) == 3
        assert loader.next(0) is not None
        wait_until(lambda: loader.lag() == 392 and len(loader._formed) == 3)


def test_lag_start_and_clock_are_told(tmp_path: Path) -> None:
    write_json(tmp_path, events(100))
    start = {0: Position(10), 1: Position(0)}
    with forked(log_in(tmp_path), start=start) as loader:
        wait_until(lambda: loader.start == start and loader.lag() == 90)
        assert loader.clock == "append"
        assert loader.next(60) is not None
        assert loader.lag() == 82
        write_json(tmp_path, events(20))  # while nobody takes a batch
        wait_until(lambda: loader.lag() == 102)


def test_a_bound_on_the_lag_reaches_it(tmp_path: Path) -> None:
    write_json(tmp_path, events(100))
    with forked(log_in(tmp_path), linger_seconds=0.0) as loader:
        assert loader.next(60) is not None
        loader.skip_above(10)

        def skips() -> bool:
            write_json(tmp_path, events(20))
            batch = loader.next(1)
            return batch is not None and batch.skipped_events > 0

        wait_until(skips)


def test_an_error_of_the_source_is_raised_as_what_it_is(tmp_path: Path) -> None:
    write_json(tmp_path, events(40))
    plain = Loader(log_in(tmp_path)(), LoaderJob(SYNTHETIC, 8, start={0: Position(99)}))
    with closing(plain), pytest.raises(OffsetOutOfRange) as expected:
        plain.next(60)
    with forked(log_in(tmp_path), start={0: Position(99)}) as loader:
        assert not loader.ended
        with pytest.raises(OffsetOutOfRange) as error:
            loader.next(60)
        assert str(error.value) == str(expected.value)
        assert loader.ended


def test_batches_before_an_error_are_handed_out(tmp_path: Path) -> None:
    write_json(tmp_path, events(40))

    class Broken(LogReader):
        def read(self, partition: int, offset: int, max_bytes: int = 1 << 20) -> Any:
            if offset:
                raise ZeroDivisionError("a bug")
            return super().read(partition, offset, 1)

    with forked(partial(Broken, tmp_path, "clicks"), batch=2, read_bytes=1) as loader:
        wait_until(lambda: loader.lag() >= 0 and loader._over is not None)
        assert not loader.ended
        assert loader.next(60) is not None
        with pytest.raises(ProcessFailed, match=r"the loader failed: ZeroDivisionError\('a bug'\); see the log"):
            loader.next(60)


def test_a_source_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    def refuse() -> LogReader:
        raise ConfigError("there is no such topic")

    with forked(refuse) as loader:
        wait_until(lambda: loader.start == {})  # nobody waits for it for ever
        with pytest.raises(ConfigError, match="there is no such topic"):
            loader.next(60)


def test_events_that_lack_a_field_are_told(tmp_path: Path) -> None:
    write_json(tmp_path, events(300))
    criteo = load_schema("criteo")
    with forked(log_in(tmp_path), schema=criteo, look_at=100) as loader, pytest.raises(AbsentField, match="31 more"):
        loader.next(60)


def test_a_killed_process_is_told(tmp_path: Path) -> None:
    write_json(tmp_path, events(40))
    with forked(log_in(tmp_path), prefetch=1) as loader:
        assert loader.next(60) is not None
        os.kill(pid_of(loader), signal.SIGKILL)
        with pytest.raises(ProcessFailed, match="ended with status -9"):
            taken(loader)
        loader.skip_above(3)
        assert loader.lag() > 0


def test_a_process_that_dies_before_it_loads_is_told(tmp_path: Path) -> None:
    loader = ForkedLoader(log_in(tmp_path), SYNTHETIC, 8, 4, "a loader of a test")
    os.kill(pid_of(loader), signal.SIGKILL)
    with closing(loader.begin(LoaderJob(SYNTHETIC, 8))):
        wait_until(lambda: loader.start == {})
        with pytest.raises(ProcessFailed, match="ended with status -9"):
            loader.next(60)


def test_a_process_that_hangs_is_killed_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(tmp_path, events(4))
    with forked(log_in(tmp_path), linger_seconds=0.0) as loader:
        assert loader.next(60) is not None
        pid = pid_of(loader)
        os.kill(pid, signal.SIGSTOP)
        monkeypatch.setattr("ingest.batches.forked.SILENT_SECONDS", 0.5)
        wait_until(lambda: loader.next(0.1) is None and loader._over is not None)
        with pytest.raises(ProcessFailed, match=r"no sign of life for 0\.5 seconds and was killed"):
            loader.next(60)
        assert not psutil.pid_exists(pid)


def test_one_that_has_nothing_to_say_is_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingest.batches.forked.LIFE_SECONDS", 0.0)
    monkeypatch.setattr("ingest.batches.forked.SILENT_SECONDS", 5.0)
    write_json(tmp_path, events(4))
    with forked(log_in(tmp_path), linger_seconds=0.0) as loader:
        assert loader.next(60) is not None
        assert loader.lag() == 0
        heard = loader._heard_at
        wait_until(lambda: loader.lag() == 0 and loader._heard_at != heard)


def test_signals_for_its_parent_do_not_end_it(tmp_path: Path) -> None:
    write_json(tmp_path, events(80))
    with forked(log_in(tmp_path), prefetch=1) as loader:
        assert loader.next(60) is not None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(pid_of(loader), number)
        assert sum(len(batch.samples) for batch in iter(lambda: loader.next(2), None)) == 72


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    write_json(tmp_path, events(40))
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        try:
            assert parent.stdout is not None
            loader = psutil.Process(int(parent.stdout.readline()))
            assert " ".join(as_started(loader.cmdline())) == "a loader of a test"
        finally:
            parent.kill()
    wait_until(lambda: not loader.is_running() or loader.status() == psutil.STATUS_ZOMBIE)


def test_closing_commits_what_was_taken_and_leaves_no_process(tmp_path: Path) -> None:
    write_json(tmp_path, events(80), partitions=1)

    class Committing(LogReader):
        def commit(self, positions: Mapping[int, int]) -> None:
            (tmp_path / "committed").write_text(str(dict(positions)))

    loader = ForkedLoader(partial(Committing, tmp_path, "clicks"), SYNTHETIC, 8, 4, "a loader of a test")
    loader.begin(LoaderJob(SYNTHETIC, 8))
    for _ in range(3):
        assert loader.next(60) is not None
    pid = pid_of(loader)
    loader.close()
    assert (tmp_path / "committed").read_text() == "{0: 24}"
    assert (loader.next(60), loader.ended) == (None, True)
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)
    loader.close()


def test_a_process_that_cannot_even_begin_ends_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no more descriptors")

    monkeypatch.setattr("ingest.batches.forked.die_with", fail)
    parent = os.getpid()
    loader = ForkedLoader(log_in(tmp_path), SYNTHETIC, 8, 4, "a loader of a test")
    assert os.getpid() == parent, "the process went on as its parent"
    with closing(loader.begin(LoaderJob(SYNTHETIC, 8))), pytest.raises(ProcessFailed, match="ended with status 1"):
        loader.next(60)


def test_a_loader_that_never_began_ends(tmp_path: Path) -> None:
    loader = ForkedLoader(log_in(tmp_path), SYNTHETIC, 8, 4, "a loader of a test")
    pid = pid_of(loader)
    loader.close()
    assert not psutil.pid_exists(pid)


def test_one_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingest.batches.forked.CLOSE_SECONDS", 0.1)
    writer = LogWriter(tmp_path, "clicks", 1)
    writer.close()

    class Hanging(LogReader):
        def commit(self, positions: Mapping[int, int]) -> None:
            time.sleep(600)

    loader = ForkedLoader(partial(Hanging, tmp_path, "clicks"), SYNTHETIC, 8, 4, "a loader of a test")
    loader.begin(LoaderJob(SYNTHETIC, 8))
    wait_until(lambda: loader.start is not None)
    pid = pid_of(loader)
    loader.close()
    assert not psutil.pid_exists(pid)

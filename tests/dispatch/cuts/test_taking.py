import errno
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from dispatch.cuts import reference
from dispatch.cuts.reference import ANSWER_SECONDS, PendingScores, ReferenceAnswer
from dispatch.cuts.retention import files_of
from dispatch.cuts.state import read_state
from dispatch.cuts.taking import CutBook, CutFailure
from dispatch.progress.newest import TrainedSamples
from infra.base.errors import StorageError
from infra.base.storage import Storage
from infra.base.telemetry import Meter
from ingest.samples import no_samples
from ingest.streams.position import Position
from ps.cuts.manifest import CutManifest, manifest_numbers, read_manifest
from ps.protocol import CutSaved, FilePart
from tests.disks import fill, small_disk
from tests.dispatch.cuts.cuts import decided, trained


class Cuts:
    """A book, and shards that save what it asks them to."""

    def __init__(self, folder: Path, most: int = 2, last: int = 0) -> None:
        self.storage, self.registry = Storage.at(folder), CollectorRegistry()
        self.book = CutBook(self.storage, "r", most, last, Meter(self.registry))
        self.book.find_last()

    def save(self, shard: int, number: int, *more: FilePart) -> None:
        name = f"{number:08d}/shard-{shard}-x.safetensors"
        self.storage.write(name, [b"rows"])
        parts = [*more, FilePart(name, 4, "0" * 32)]
        self.book.saved(shard, CutSaved(run="r", generation=1, step=5, cut=number, parts=parts, rows=3))

    def take(self, step: int = 5) -> CutManifest | CutFailure:
        number = self.book.begin(decided(step, rows=6), shards=2)
        for shard in range(2):
            self.save(shard, number)
        self.book.add_state(trained())
        return self.outcome()

    def outcome(self) -> CutManifest | CutFailure:
        found = waited(self.book.finished)
        assert isinstance(found, CutManifest | CutFailure)
        return found

    def counted(self, name: str) -> float:
        return self.registry.get_sample_value(name) or 0.0


def waited(poll: Callable[[], object]) -> object:
    """What a poll that is answered by a thread finds."""
    while (found := poll()) is None:
        time.sleep(0.001)
    return found


@pytest.fixture
def cuts(tmp_path: Path) -> Iterator[Cuts]:
    made = Cuts(tmp_path / "cuts")
    yield made
    made.book.close()


def test_a_cut_exists_once_all_shards_have_saved_and_the_flush_is_complete(cuts: Cuts) -> None:
    number = cuts.book.begin(decided(5, rows=6), shards=2)
    cuts.save(1, number)
    cuts.book.add_state(trained())
    assert (cuts.book.finished(), manifest_numbers(cuts.storage)) == (None, [])
    cuts.save(0, number)
    manifest = cuts.outcome()
    assert manifest == read_manifest(cuts.storage, 1)
    assert isinstance(manifest, CutManifest)
    assert (manifest.run, manifest.step, manifest.rows, [part.shard for part in manifest.shards]) == ("r", 5, 6, [0, 1])
    assert read_state(cuts.storage, manifest).decided == decided(5, rows=6)
    assert (cuts.book.finished(), cuts.book.is_idle, cuts.book.next_number) == (None, True, 2)
    assert cuts.counted("freshet_cuts_total") == 1


def test_a_cut_waits_for_the_answer_of_a_server_and_not_for_long(cuts: Cuts, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(reference, "monotonic", lambda: now[0])
    asked = TrainedSamples(no_samples(4, 2), np.empty(0, np.float32))
    for is_answered in (False, True):
        answer: Future[ReferenceAnswer] = Future()
        number = cuts.book.begin(decided(5, rows=6), shards=2)
        for shard in range(2):
            cuts.save(shard, number)
        cuts.book.add_state(trained(), PendingScores(asked, answer))
        assert cuts.book.finished() is None
        assert number not in manifest_numbers(cuts.storage)
        if is_answered:
            answer.set_result(ReferenceAnswer(1, 5, np.empty(0, np.float32)))
        else:
            now[0] += ANSWER_SECONDS
        assert isinstance(cuts.outcome(), CutManifest)


def test_a_shard_that_fails_costs_the_cut_and_nothing_else(cuts: Cuts) -> None:
    number = cuts.book.begin(decided(5, rows=6), shards=2)
    shared = FilePart("00000000/base-0-x.safetensors", 4, "0" * 32)
    cuts.storage.write(shared.name, [b"rows"])
    cuts.save(0, number, shared)
    cuts.book.fail(number, "shard 1: no room")
    assert cuts.outcome() == CutFailure(1, 5, "shard 1: no room")
    cuts.save(1, number)  # too late
    assert isinstance(cuts.take(9), CutManifest)
    assert manifest_numbers(cuts.storage) == [2]
    names = cuts.storage.names()
    assert shared.name in names
    assert not [name for name in names if name.startswith("00000001/")]
    assert cuts.counted("freshet_cuts_failed_total") == 1


def test_a_full_disk_costs_the_cut_and_nothing_of_it_is_left(cuts: Cuts, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Storage.write

    def full(self: Storage, name: str, chunks: object) -> int:
        if name.endswith(".json"):
            raise StorageError("no room") from OSError(errno.ENOSPC, "No space left on device")
        return write(self, name, chunks)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(Storage, "write", full)
        assert cuts.take() == CutFailure(1, 5, "no room")
    assert cuts.storage.names() == []
    assert isinstance(cuts.take(), CutManifest)


def test_a_disk_that_is_really_full_costs_the_cut(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1024) as disk:
        cuts = Cuts(disk / "cuts")
        number = cuts.book.begin(decided(5, rows=6), shards=2)
        for shard in range(2):
            cuts.save(shard, number)
        filling = fill(disk)
        cuts.book.add_state(trained())
        failure = cuts.outcome()
        assert isinstance(failure, CutFailure)
        assert "No space left on device" in failure.reason
        filling.unlink()
        assert cuts.storage.names() == []
        cuts.book.close()


def test_shards_with_other_rows_than_were_given_out_make_no_cut(cuts: Cuts) -> None:
    number = cuts.book.begin(decided(5, rows=7), shards=2)
    for shard in range(2):
        cuts.save(shard, number)
    cuts.book.add_state(trained())
    failure = cuts.outcome()
    assert isinstance(failure, CutFailure)
    assert "shards hold 6 rows after step 5, and 7 were given out" in failure.reason
    assert cuts.storage.names() == []


def test_numbers_are_never_used_again(tmp_path: Path) -> None:
    first = Cuts(tmp_path)
    first.take()
    first.book.begin(decided(), shards=2)
    first.save(0, 2)  # and then it crashes
    first.book.close()
    again = Cuts(tmp_path)
    assert again.book.next_number == 3
    again.book.close()
    known = Cuts(tmp_path, last=7)
    assert known.book.next_number == 8
    known.book.close()


def test_a_cut_that_is_given_up_fails_unless_it_exists_by_then(cuts: Cuts) -> None:
    assert cuts.book.abandon("worker lost") is None
    number = cuts.book.begin(decided(5, rows=6), shards=2)
    cuts.save(0, number)
    assert cuts.book.abandon("worker lost") == CutFailure(1, 5, "worker lost")
    number = cuts.book.begin(decided(5, rows=6), shards=2)
    for shard in range(2):
        cuts.save(shard, number)
    cuts.book.add_state(trained())
    assert isinstance(cuts.book.abandon("worker lost"), CutManifest)
    assert cuts.book.is_idle


def test_old_cuts_are_dropped_and_how_far_back_the_rest_reaches_is_told(cuts: Cuts) -> None:
    for step in (5, 7, 9):
        cuts.take(step)
    assert cuts.book.dropped() is None
    cuts.book.drop_old()
    dropped = waited(cuts.book.dropped)
    assert dropped == (((2, 3), 2), {0: Position(7)})
    assert manifest_numbers(cuts.storage) == [2, 3]
    assert cuts.book.dropped() is None


def test_old_cuts_that_cannot_be_dropped_harm_nobody(cuts: Cuts, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise StorageError("not now")

    for step in (5, 7, 9):
        cuts.take(step)
    with monkeypatch.context() as patched:
        patched.setattr(Storage, "delete", refuse)
        cuts.book.drop_old()
        cuts.book.close()
        assert cuts.book.dropped() is None
    assert manifest_numbers(cuts.storage) == [1, 2, 3]


def test_a_manifest_that_may_have_been_written_is_removed_before_its_files(
    cuts: Cuts, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, delete, is_reachable = Storage.write, Storage.delete, [False]

    def unsure(self: Storage, name: str, chunks: object) -> int:
        written = write(self, name, chunks)  # type: ignore[arg-type]
        if name.endswith(".json"):
            raise StorageError("no answer")
        return written

    def gone(self: Storage, name: str) -> None:
        if not is_reachable[0]:
            raise StorageError("no answer")
        delete(self, name)

    monkeypatch.setattr(Storage, "write", unsure)
    monkeypatch.setattr(Storage, "delete", gone)
    assert isinstance(cuts.take(), CutFailure)
    manifest = read_manifest(cuts.storage, 1)  # nothing could be removed, and it is whole
    assert {name for name in cuts.storage.names() if "/" in name} == files_of(manifest)
    is_reachable[0] = True
    assert isinstance(cuts.take(), CutFailure)
    assert manifest_numbers(cuts.storage) == [1]
    assert not [name for name in cuts.storage.names() if name.startswith("00000002")]

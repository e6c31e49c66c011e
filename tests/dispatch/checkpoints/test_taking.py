import errno
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from dispatch.checkpoints import reference
from dispatch.checkpoints.reference import ANSWER_SECONDS, PendingScores, ReferenceAnswer
from dispatch.checkpoints.retention import files_of
from dispatch.checkpoints.state import read_state
from dispatch.checkpoints.taking import CheckpointBook, CheckpointFailure
from dispatch.placement.rows.pruning import PrunerState
from dispatch.progress.newest import TrainedSamples
from infra.base.errors import StorageError
from infra.base.storage import Storage
from infra.base.telemetry import Meter
from ingest.samples import no_samples
from ingest.streams.position import Position
from ps.checkpoints.manifest import CheckpointManifest, manifest_numbers, read_manifest
from ps.protocol import CheckpointSaved, FilePart
from tests.disks import fill, small_disk
from tests.dispatch.checkpoints.checkpoints import decided, trained


class Checkpoints:
    """A book, and shards that save what it asks them to."""

    def __init__(self, folder: Path, most: int = 2, last: int = 0) -> None:
        self.storage, self.registry = Storage.at(folder), CollectorRegistry()
        self.book = CheckpointBook(self.storage, "r", most, last, Meter(self.registry))
        self.book.find_last()

    def save(self, shard: int, number: int, *more: FilePart) -> None:
        name = f"{number:08d}/shard-{shard}-x.safetensors"
        self.storage.write(name, [b"rows"])
        parts = [*more, FilePart(name, 4, "0" * 32)]
        self.book.saved(shard, CheckpointSaved(run="r", generation=1, step=5, checkpoint=number, parts=parts, rows=3))

    def take(self, step: int = 5) -> CheckpointManifest | CheckpointFailure:
        number = self.book.begin(decided(step, rows=6), shards=2)
        for shard in range(2):
            self.save(shard, number)
        self.book.add_state(trained())
        return self.outcome()

    def outcome(self) -> CheckpointManifest | CheckpointFailure:
        found = waited(self.book.finished)
        assert isinstance(found, CheckpointManifest | CheckpointFailure)
        return found

    def counted(self, name: str) -> float:
        return self.registry.get_sample_value(name) or 0.0


def waited(poll: Callable[[], object]) -> object:
    """What a poll that is answered by a thread finds."""
    while (found := poll()) is None:
        time.sleep(0.001)
    return found


@pytest.fixture
def checkpoints(tmp_path: Path) -> Iterator[Checkpoints]:
    made = Checkpoints(tmp_path / "checkpoints")
    yield made
    made.book.close()


def test_a_checkpoint_exists_once_all_shards_have_saved_and_the_flush_is_complete(checkpoints: Checkpoints) -> None:
    number = checkpoints.book.begin(decided(5, rows=6), shards=2)
    checkpoints.save(1, number)
    checkpoints.book.add_state(trained())
    assert (checkpoints.book.finished(), manifest_numbers(checkpoints.storage)) == (None, [])
    checkpoints.save(0, number)
    manifest = checkpoints.outcome()
    assert manifest == read_manifest(checkpoints.storage, 1)
    assert isinstance(manifest, CheckpointManifest)
    assert (manifest.run, manifest.step, manifest.rows, [part.shard for part in manifest.shards]) == ("r", 5, 6, [0, 1])
    assert read_state(checkpoints.storage, manifest).decided == decided(5, rows=6)
    assert (checkpoints.book.finished(), checkpoints.book.is_idle, checkpoints.book.next_number) == (None, True, 2)
    assert checkpoints.counted("freshet_checkpoints_total") == 1


def test_a_checkpoint_waits_for_the_answer_of_a_server_and_not_for_long(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(reference, "monotonic", lambda: now[0])
    asked = TrainedSamples(no_samples(4, 2), np.empty(0, np.float32))
    for is_answered in (False, True):
        answer: Future[ReferenceAnswer] = Future()
        number = checkpoints.book.begin(decided(5, rows=6), shards=2)
        for shard in range(2):
            checkpoints.save(shard, number)
        checkpoints.book.add_state(trained(), PendingScores(asked, answer))
        assert checkpoints.book.finished() is None
        assert number not in manifest_numbers(checkpoints.storage)
        if is_answered:
            answer.set_result(ReferenceAnswer(1, 5, np.empty(0, np.float32)))
        else:
            now[0] += ANSWER_SECONDS
        assert isinstance(checkpoints.outcome(), CheckpointManifest)


def test_a_shard_that_fails_costs_the_checkpoint_and_nothing_else(checkpoints: Checkpoints) -> None:
    number = checkpoints.book.begin(decided(5, rows=6), shards=2)
    shared = FilePart("00000000/base-0-x.safetensors", 4, "0" * 32)
    checkpoints.storage.write(shared.name, [b"rows"])
    checkpoints.save(0, number, shared)
    checkpoints.book.fail(number, "shard 1: no room")
    assert checkpoints.outcome() == CheckpointFailure(1, 5, "shard 1: no room")
    checkpoints.save(1, number)  # too late
    assert isinstance(checkpoints.take(9), CheckpointManifest)
    assert manifest_numbers(checkpoints.storage) == [2]
    names = checkpoints.storage.names()
    assert shared.name in names
    assert not [name for name in names if name.startswith("00000001/")]
    assert checkpoints.counted("freshet_checkpoints_failed_total") == 1


def test_a_full_disk_costs_the_checkpoint_and_nothing_of_it_is_left(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Storage.write

    def full(self: Storage, name: str, chunks: object) -> int:
        if name.endswith(".json"):
            raise StorageError("no room") from OSError(errno.ENOSPC, "No space left on device")
        return write(self, name, chunks)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(Storage, "write", full)
        assert checkpoints.take() == CheckpointFailure(1, 5, "no room")
    assert checkpoints.storage.names() == []
    assert isinstance(checkpoints.take(), CheckpointManifest)


def test_a_disk_that_is_really_full_costs_the_checkpoint(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1024) as disk:
        checkpoints = Checkpoints(disk / "checkpoints")
        number = checkpoints.book.begin(decided(5, rows=6), shards=2)
        for shard in range(2):
            checkpoints.save(shard, number)
        filling = fill(disk)
        checkpoints.book.add_state(trained())
        failure = checkpoints.outcome()
        assert isinstance(failure, CheckpointFailure)
        assert "No space left on device" in failure.reason
        filling.unlink()
        assert checkpoints.storage.names() == []
        checkpoints.book.close()


def test_shards_with_other_rows_than_were_given_out_make_no_checkpoint(checkpoints: Checkpoints) -> None:
    number = checkpoints.book.begin(decided(5, rows=7), shards=2)
    for shard in range(2):
        checkpoints.save(shard, number)
    checkpoints.book.add_state(trained())
    failure = checkpoints.outcome()
    assert isinstance(failure, CheckpointFailure)
    assert "shards hold 6 rows after step 5, and 7 were given out" in failure.reason
    assert checkpoints.storage.names() == []


def test_numbers_are_never_used_again(tmp_path: Path) -> None:
    first = Checkpoints(tmp_path)
    first.take()
    first.book.begin(decided(), shards=2)
    first.save(0, 2)  # and then it crashes
    first.book.close()
    again = Checkpoints(tmp_path)
    assert again.book.next_number == 3
    again.book.close()
    known = Checkpoints(tmp_path, last=7)
    assert known.book.next_number == 8
    known.book.close()


def test_a_checkpoint_that_is_given_up_fails_unless_it_exists_by_then(checkpoints: Checkpoints) -> None:
    assert checkpoints.book.abandon("worker lost") is None
    number = checkpoints.book.begin(decided(5, rows=6), shards=2)
    checkpoints.save(0, number)
    assert checkpoints.book.abandon("worker lost") == CheckpointFailure(1, 5, "worker lost")
    number = checkpoints.book.begin(decided(5, rows=6), shards=2)
    for shard in range(2):
        checkpoints.save(shard, number)
    checkpoints.book.add_state(trained())
    assert isinstance(checkpoints.book.abandon("worker lost"), CheckpointManifest)
    assert checkpoints.book.is_idle


def test_old_checkpoints_are_dropped_and_how_far_back_the_rest_reaches_is_told(checkpoints: Checkpoints) -> None:
    for step in (5, 7, 9):
        checkpoints.take(step)
    assert checkpoints.book.dropped() is None
    checkpoints.book.drop_old()
    dropped = waited(checkpoints.book.dropped)
    assert dropped == (((2, 3), 2), {0: Position(7)})
    assert manifest_numbers(checkpoints.storage) == [2, 3]
    assert checkpoints.book.dropped() is None


def test_old_checkpoints_that_cannot_be_dropped_harm_nobody(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StorageError("not now")

    for step in (5, 7, 9):
        checkpoints.take(step)
    with monkeypatch.context() as patched:
        patched.setattr(Storage, "delete", refuse)
        checkpoints.book.drop_old()
        checkpoints.book.close()
        assert checkpoints.book.dropped() is None
    assert manifest_numbers(checkpoints.storage) == [1, 2, 3]


def test_a_manifest_that_may_have_been_written_is_removed_before_its_files(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
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
    assert isinstance(checkpoints.take(), CheckpointFailure)
    manifest = read_manifest(checkpoints.storage, 1)  # nothing could be removed, and it is whole
    assert {name for name in checkpoints.storage.names() if "/" in name} == files_of(manifest)
    is_reachable[0] = True
    assert isinstance(checkpoints.take(), CheckpointFailure)
    assert manifest_numbers(checkpoints.storage) == [1]
    assert not [name for name in checkpoints.storage.names() if name.startswith("00000002")]


@pytest.mark.parametrize(("rounds", "shares"), [((0, 0, 0), (0.0, 2 / 3, 2 / 3)), ((0, 6, 6), (0.0, 0.0, 2 / 3))])
def test_rows_that_a_round_of_pruning_changed_are_not_taken_for_trained_ones(
    checkpoints: Checkpoints, rounds: tuple[int, ...], shares: tuple[float, ...]
) -> None:
    """Otherwise the gate would hold a snapshot back because many rows have changed at once."""
    found: list[float] = []
    parts: list[FilePart] = []
    for taken, last_round in enumerate(rounds, 1):
        pruning = PrunerState(last_round=last_round)
        number = checkpoints.book.begin(decided(5 * taken, rows=3, pruning=pruning), shards=1)
        parts.append(FilePart(f"{number:08d}/shard-0-x.safetensors", 4, "0" * 32, rows=2))
        checkpoints.storage.write(parts[-1].name, [b"rows"])
        saved = CheckpointSaved(run="r", generation=1, step=5 * taken, checkpoint=number, parts=list(parts), rows=3)
        checkpoints.book.saved(0, saved)
        checkpoints.book.add_state(trained())
        manifest = checkpoints.outcome()
        assert isinstance(manifest, CheckpointManifest)
        found.append(manifest.figures.changed_share)
    assert found == pytest.approx(shares)

"""Which snapshot is served: the newest good one, what a person wants, and never an older one by itself."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from dispatch.checkpoints.retention import discard_after, drop_old
from infra.base.errors import StorageError
from infra.base.storage import Storage
from infra.base.telemetry import DoublingPauses, Meter
from ps.checkpoints.choice import Choice, write_choice
from ps.checkpoints.manifest import manifest_name
from ps.checkpoints.served import read_served
from serving.copies import Copies
from serving.follow import Follower, PolledNews
from serving.snapshot_id import SnapshotId
from tests.serving.trained import PROBE, Trained


class HeardNews(PolledNews):
    """Keeps what was served."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshots: list[SnapshotId] = []

    def served(self, snapshot: SnapshotId, at_seconds: float) -> None:
        self.snapshots.append(snapshot)


class Following:
    """A follower that takes its turns when told."""

    def __init__(self, trained: Trained) -> None:
        self.trained, self.news, self.copies = trained, HeardNews(), Copies(trained.spec)
        self.follower = Follower(trained.storage, self.copies, self.news, Meter(CollectorRegistry()))

    def turn(self) -> int:
        """Returns the checkpoint that is served then, with its own predictions."""
        self.follower.turn()
        with self.copies.reading() as (copy, manifest):
            assert np.abs(copy.predict(PROBE) - self.trained.expected[manifest.number]).max() < 1e-6
            return manifest.number

    def want(self, **wanted: object) -> int:
        write_choice(self.trained.storage, Choice(**wanted))  # type: ignore[arg-type]
        return self.turn()


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    """A run with one checkpoint."""
    made = Trained(tmp_path)
    made.train().take()
    return made


def test_newest_good_snapshot_is_served_and_told_once(trained: Trained) -> None:
    following = Following(trained)
    assert following.turn() == 1
    trained.train().take("logloss")
    assert following.turn() == 1
    trained.train().take()
    assert (following.turn(), following.turn()) == (3, 3)
    assert following.news.snapshots == [(0, 2, 1), (0, 6, 3)]


def test_a_held_snapshot_goes_out_when_it_is_released(trained: Trained) -> None:
    following = Following(trained)
    trained.train().take("calibration")
    assert following.turn() == 1
    assert following.want(released=(2,)) == 2


def test_a_pin_is_served_whatever_its_verdict_and_stays_over_restarts(trained: Trained) -> None:
    following = Following(trained)
    trained.train().take("logloss")
    trained.train().take()
    assert following.turn() == 3
    assert following.want(pinned=2) == 2
    trained.train().take()
    assert following.turn() == 2
    assert Following(trained).turn() == 2
    assert following.want() == 4


def test_rollback_to_the_snapshot_before_reads_no_file(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    following = Following(trained)
    following.turn()
    trained.train().take()
    assert following.turn() == 2
    monkeypatch.setattr("serving.follow.load", lambda *_: pytest.fail("files were read"))
    assert following.want(pinned=1) == 1
    assert following.want(pinned=2) == 2


def test_a_snapshot_that_disappears_stays_served_until_a_later_one_comes(trained: Trained) -> None:
    following = Following(trained)
    trained.train().take()
    assert following.turn() == 2
    trained.storage.delete(manifest_name(2))  # its steps are decided anew
    assert following.turn() == 2
    trained.decide_anew(1)
    trained.train(1).take()
    assert following.turn() == 3
    assert following.news.snapshots == [(0, 4, 2), (1, 3, 3)]


def test_unpinning_may_go_back_to_an_older_good_snapshot(trained: Trained) -> None:
    following = Following(trained)
    trained.train().take("logloss")
    assert following.want(pinned=2) == 2
    assert following.want() == 1


def damage_a_file(trained: Trained) -> None:
    (file,) = trained.folder.glob(f"{trained.checkpoint:08d}/shard-0-*")
    file.write_bytes(b"nonsense")


def damage_the_manifest(trained: Trained) -> None:
    (trained.folder / manifest_name(trained.checkpoint)).write_bytes(b"nonsense")


@pytest.mark.parametrize("damage", [damage_a_file, damage_the_manifest])
def test_a_damaged_checkpoint_is_left_out_and_a_later_one_is_served(
    damage: Callable[[Trained], None], trained: Trained
) -> None:
    following = Following(trained)
    following.turn()
    trained.train().take()
    damage(trained)
    assert following.turn() == 1
    assert Following(trained).turn() == 1
    trained.deal(1)  # a chain without the damaged file
    trained.train().take()
    assert following.turn() == 3


def test_a_failure_while_rows_are_put_in_leaves_the_other_copy_serving(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    following = Following(trained)
    following.turn()
    trained.train().take()
    following.turn()
    trained.train().take()
    with monkeypatch.context() as patched:
        patched.setattr("serving.rows.table.RowTable.put", lambda *_: (_ for _ in ()).throw(MemoryError("none left")))
        assert following.turn() == 2
        assert "none left" in following.follower.state.failure
    monkeypatch.setattr("serving.follow.RETRY_SECONDS", 0.0)
    following.follower._retry_at.clear()
    assert following.turn() == 3  # loaded as a whole


def test_a_pin_that_cannot_be_read_is_told_and_what_is_served_stays(trained: Trained) -> None:
    following = Following(trained)
    following.turn()
    assert following.want(pinned=9) == 1
    assert "checkpoint 9 is pinned" in following.follower.state.failure
    (trained.folder / "serving.json").write_bytes(b"nonsense")
    assert following.turn() == 1
    assert "cannot be read" in following.follower.state.failure


def test_a_thread_follows_by_itself(trained: Trained) -> None:
    following = Following(trained)
    following.follower.start()
    try:
        following.follower.wait_turn(30)
        trained.train().take()
        following.follower.wait_turn(30)
        assert following.copies.served is not None
        assert following.copies.served.number == 2
    finally:
        following.follower.close()


def hold_back(trained: Trained, number: int) -> None:
    """Newer snapshots that are held back, each followed by what the run does with old ones."""
    for _ in range(number):
        trained.train(1).take("logloss")
        drop_old(trained.storage, 1)


def test_what_is_served_is_there_after_a_restart_however_many_newer_ones_are_held(trained: Trained) -> None:
    trained.train().take()
    assert Following(trained).turn() == 2
    hold_back(trained, 4)
    assert Following(trained).turn() == 2
    assert Following(trained).want(pinned=1) == 1  # as a rollback does


def test_a_snapshot_of_void_steps_that_was_served_is_served_after_a_restart(trained: Trained) -> None:
    trained.train().take()
    assert Following(trained).turn() == 2
    discard_after(trained.storage, 1)
    assert Following(trained).turn() == 2


def test_a_start_with_something_older_says_so_until_something_newer_comes(trained: Trained) -> None:
    trained.train().take()
    assert Following(trained).turn() == 2
    trained.storage.delete(manifest_name(2))
    for _ in range(2):  # the second start as the first
        following = Following(trained)
        assert following.turn() == 1
        assert (
            "checkpoint 1 after step 2 is served, and checkpoint 2 after step 4 was" in following.follower.state.failure
        )
    trained.train().take()
    assert (following.turn(), following.follower.state.failure) == (3, "")
    assert read_served(trained.storage, "serve").checkpoint == 3  # type: ignore[union-attr]


def test_going_back_because_a_person_wants_it_is_no_setback(trained: Trained) -> None:
    trained.train().take("logloss")
    assert Following(trained).want(pinned=2) == 2
    following = Following(trained)
    assert (following.want(), following.follower.state.failure) == (1, "")


def test_what_is_served_is_written_down_now_and_then(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("serving.snapshots.remembered.monotonic", lambda: clock[0])
    following, found = Following(trained), list[int]()
    for seconds in (0.0, 1.0, 10.0):
        clock[0] += seconds
        following.turn()
        found.append(read_served(trained.storage, "serve").checkpoint)  # type: ignore[union-attr]
        trained.train(1).take()
    assert found == [1, 1, 3]


def test_a_storage_that_takes_no_record_keeps_nobody_from_serving(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StorageError("read-only")

    with monkeypatch.context() as patched:
        patched.setattr(Storage, "write", refuse)
        following = Following(trained)
        assert (following.turn(), following.follower.state.failure) == (1, "")
    record = trained.folder / "served-serve.json"
    record.mkdir()  # the system refuses to read it
    assert Following(trained).turn() == 1
    record.rmdir()
    record.write_bytes(b"nonsense")
    assert Following(trained).turn() == 1
    assert read_served(trained.storage, "serve").checkpoint == 1  # type: ignore[union-attr]


def test_snapshots_that_follow_each_other_are_not_logged_each_and_changes_are(trained: Trained) -> None:
    following = Following(trained)
    following.follower._pauses = DoublingPauses(lambda: 0.0)

    def logged(act: Callable[[], int]) -> list[int]:
        """The checkpoints that were logged as served."""
        with capture_logs() as logs:
            act()
        return [line["checkpoint"] for line in logs if line["event"] == "serves"]

    assert logged(following.turn) == [1]
    for _ in range(3):
        trained.train().take()
        assert logged(following.turn) == []
    trained.train().take("logloss is 0.9")
    assert logged(lambda: following.want(released=(5,))) == [5]
    assert logged(lambda: following.want(pinned=3)) == [3]
    assert logged(lambda: following.want(released=(5,))) == []  # served before for that reason


def test_a_checkpoint_that_stays_damaged_is_logged_once(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    following = Following(trained)
    following.turn()
    trained.train().take()
    (trained.folder / manifest_name(2)).write_bytes(b"nonsense")
    monkeypatch.setattr("serving.follow.RETRY_SECONDS", 0.0)
    following.follower._pauses = DoublingPauses(lambda: 0.0)
    with capture_logs() as logs:
        for _ in range(5):
            assert following.turn() == 1
    assert [line["checkpoint"] for line in logs if line["event"] == "checkpoint is left out"] == [2]

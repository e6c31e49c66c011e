"""Going back to a checkpoint: on any number of shards, whole or not at all."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from infra.base.storage import Storage
from infra.base.wire import Refused
from infra.kafka.jars import MAVEN_SECONDS
from ps.checkpoints.manifest import read_manifest, write_manifest
from ps.checkpoints.restore import deal_dense
from ps.config import DenseRule
from ps.errors import CheckpointDamaged
from ps.protocol import GO_ON, Announce, AnnounceArrays, Opened
from ps.rounds import Received
from tests.ps.checkpoints.driving import Driven
from tests.ps.checkpoints.test_taker import flip


@pytest.fixture
def driven(tmp_path: Path) -> Iterator[Driven]:
    """Three shards with two checkpoints, and a step behind them."""
    made = Driven(Storage.at(tmp_path), 3)
    for _ in range(2):
        made.train(10, range(20), range(5, 9))
        made.train(1, range(3), by_gradient=True)
        made.take()
    made.train(3, range(25))
    made.deliver(99)
    yield made
    made.close()


@pytest.mark.parametrize("shards", [1, 2, 3, 5])
@pytest.mark.parametrize("checkpoint", [0, 1, 2])
def test_checkpoint_of_three_shards_is_restored_on_any_number(driven: Driven, shards: int, checkpoint: int) -> None:
    driven.start(shards)
    assert [answer.rows for answer in driven.open(checkpoint)] == [len(shard.store) for shard in driven.shards]
    driven.check()
    driven.train(4, range(30))
    driven.take()
    driven.start(2)
    driven.open(driven.checkpoint)
    driven.check()


@pytest.mark.timeout(MAVEN_SECONDS)
def test_checkpoints_in_a_bucket_are_merged_and_restored(bucket: str) -> None:
    driven = Driven(Storage.at(bucket.replace("bucket?", "bucket/restored?")), 2, deltas=1)
    for _ in range(4):
        driven.train(6, range(12))
        driven.take()
        driven.settle()
    driven.start(3)
    assert all(isinstance(answer, Opened) for answer in driven.open(driven.checkpoint))
    driven.check()
    driven.close()


def test_survivors_roll_back_and_train_on(driven: Driven) -> None:
    driven.flush(checkpoint=False)
    driven.train(5, range(30))
    assert all(isinstance(answer, Opened) for answer in driven.open(1))
    driven.check()
    driven.train(2, range(7))
    driven.check()
    assert driven.take() == 3


def test_generation_that_goes_on_keeps_the_model(driven: Driven) -> None:
    assert all(isinstance(answer, Opened) for answer in driven.open(GO_ON))
    driven.check()


def test_damage_in_any_file_is_refused_and_named_and_an_older_checkpoint_still_works(
    driven: Driven, tmp_path: Path
) -> None:
    for file in sorted(tmp_path.glob("00000002/*")):
        flip(file, 500)
        answers = driven.open(2)
        refused = [answer for answer in answers if isinstance(answer, Refused)]
        assert len(refused) == 1
        assert str(file) in refused[0].reason
        flip(file, 500)
    assert all(isinstance(answer, Opened) for answer in driven.open(2))
    flip(tmp_path / "00000002.json", 30)
    assert all(isinstance(answer, Refused) for answer in driven.open(2))
    assert all(isinstance(answer, Opened) for answer in driven.open(1))
    driven.check()


def test_shard_that_could_not_go_back_refuses_rounds_until_it_can(driven: Driven) -> None:
    shard = driven.shards[0]
    assert isinstance(driven.open(9)[0], Refused)

    def announce() -> list[Any]:
        header = Announce(run="r", generation=driven.generation, step=50, phase=1, pushers=[])
        return [r.header for r in shard.receive(Received(b"dispatcher", header, AnnounceArrays()))]

    (refused,) = announce()
    assert "checkpoint 9 does not exist" in refused.reason
    driven.open(2)
    assert announce() == []


def test_missing_file_is_named(driven: Driven, tmp_path: Path) -> None:
    file = next(tmp_path.glob("00000001/shard-1-*"))
    file.unlink()
    answers = driven.open(2)
    assert [type(answer) for answer in answers] == [Opened, Refused, Opened]
    assert file.name in answers[1].reason


def test_checkpoint_of_another_run_is_refused(driven: Driven) -> None:
    theirs = msgspec.structs.replace(read_manifest(driven.storage, 2), run="other")
    write_manifest(driven.storage, theirs)
    assert "of run 'other'" in driven.open(2)[0].reason


def test_checkpoint_whose_shards_do_not_hold_all_rows_is_refused(driven: Driven) -> None:
    driven.take()
    driven.train(0, [0])
    manifest = read_manifest(driven.storage, driven.take())
    first, *others = manifest.shards
    short = msgspec.structs.replace(first, rows=first.rows + 9)
    write_manifest(driven.storage, msgspec.structs.replace(manifest, shards=(short, *others)))
    assert "rows by shard" in driven.open(4)[0].reason
    bare = msgspec.structs.replace(first, files=first.files[-1:])
    write_manifest(driven.storage, msgspec.structs.replace(manifest, shards=(bare, *others)))
    assert "no values for row number" in driven.open(4)[0].reason


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize(("old", "new"), [(1, 3), (3, 2), (4, 4), (2, 9)])
def test_dense_ranges_are_split_anew(optimizer: Any, old: int, new: int) -> None:
    rule, weights = DenseRule(optimizer), np.arange(7, dtype=np.float32)

    def checkpoint(count: int) -> list[Any]:
        places = [slice(7 * each // count, 7 * (each + 1) // count) for each in range(count)]
        if optimizer == "sgd":
            return [weights[place] for place in places]
        return [np.concatenate([weights[p], weights[p] + 10, weights[p] + 20, [5]]).astype("f4") for p in places]

    for shard, expected in enumerate(checkpoint(new)):
        found = deal_dense(checkpoint(old), shard, new, rule)
        assert found is not None
        assert np.array_equal(found, expected)


def test_dense_ranges_that_do_not_fit_are_damage() -> None:
    one, two = np.zeros(4, np.float32), np.append(np.zeros(3), 2).astype("f4")
    with pytest.raises(CheckpointDamaged, match="updates"):
        deal_dense([one, two], 0, 1, DenseRule("adam"))
    with pytest.raises(CheckpointDamaged, match="floats"):
        deal_dense([one, two[:3]], 0, 1, DenseRule("adam"))
    assert deal_dense([one[:0], one[:0]], 0, 1, DenseRule("adam")) is None

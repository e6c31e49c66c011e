"""A checkpoint into memory: the predictions of the model that was trained, whatever way the files took."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from ps.checkpoints.manifest import read_manifest
from ps.config import RowConfig
from ps.errors import CheckpointDamaged
from serving.copies import ModelCopy
from serving.loading import Plan, load
from tests.serving.trained import PROBE, Trained
from trainer.config import ModelConfig, ModelName

MODELS: tuple[ModelName, ...] = ("wdl", "deepfm", "dcn", "dlrm", "ncf")


def bring(copy: ModelCopy, trained: Trained, checkpoint: int) -> Plan:
    return load(trained.storage, read_manifest(trained.storage, checkpoint), copy)


def check(copy: ModelCopy, trained: Trained, checkpoint: int) -> None:
    """The copy predicts what the trained model did when the checkpoint was taken."""
    assert copy.manifest is not None
    assert copy.manifest.number == checkpoint
    assert np.abs(copy.predict(PROBE) - trained.expected[checkpoint]).max() < 1e-6


@pytest.mark.parametrize("name", MODELS)
def test_predictions_equal_those_of_the_trained_model(name: ModelName, tmp_path: Path) -> None:
    trained = Trained(tmp_path, ModelConfig(name=name, mlp=(8,), cross_layers=1))
    followed, kept = ModelCopy(trained.spec), ModelCopy(trained.spec)
    base = trained.train().take()
    bring(followed, trained, base)
    bring(kept, trained, base)
    for _ in range(3):  # deltas
        bring(followed, trained, trained.train().take())
    trained.compact()
    check(followed, trained, trained.checkpoint)
    newest = trained.train().take()
    assert len(bring(followed, trained, newest).files) == trained.shards  # the merged files are as old as the copy
    check(followed, trained, newest)
    assert bring(kept, trained, newest).since == (
        0,
        2,
        base,
    )  # it missed three checkpoints, of which merged files are left
    check(kept, trained, newest)
    trained.deal(3)
    dealt = trained.train().take()
    bring(followed, trained, dealt)
    check(followed, trained, dealt)
    assert bring(followed, trained, base).since is None  # back
    check(followed, trained, base)
    fresh = ModelCopy(trained.spec)  # as after a restart
    bring(fresh, trained, dealt)
    check(fresh, trained, dealt)


def test_merged_tail_of_a_chain_is_applied_to_a_copy_that_is_older(tmp_path: Path) -> None:
    trained = Trained(tmp_path)
    copy = ModelCopy(trained.spec)
    bring(copy, trained, trained.train().take())
    for _ in range(3):
        trained.train().take()
    trained.compact(first=1)
    newest = trained.train().take()
    assert "/merged-" in bring(copy, trained, newest).files[0][1].name
    check(copy, trained, newest)


def test_forgotten_keys_start_again_in_every_copy_however_it_came_to_its_snapshot(tmp_path: Path) -> None:
    trained = Trained(tmp_path)
    followed, late = ModelCopy(trained.spec), ModelCopy(trained.spec)
    base = trained.train(8).take()
    bring(followed, trained, base)
    bring(late, trained, base)
    known = []
    for number in range(6):  # deltas: numbers are freed, and given to keys that had others before
        newest = trained.train(2, forget_after=3).take()
        bring(followed, trained, newest)
        check(followed, trained, newest)
        known.append(len(followed.table))
        assert known[-1] == trained.known
        if number == 3:
            trained.compact(first=1)
    assert max(known) < len(trained.reference.numbering), "some numbers are free"
    fresh = ModelCopy(trained.spec)
    for copy in (late, fresh):
        bring(copy, trained, newest)
        check(copy, trained, newest)
    trained.deal(3)
    dealt = trained.train(2, forget_after=3).take()
    bring(followed, trained, dealt)
    check(followed, trained, dealt)
    bring(followed, trained, base)  # back, to keys that were forgotten since
    check(followed, trained, base)


@pytest.mark.parametrize("chunks", [1, 2, 4])
@pytest.mark.parametrize("wide", [True, False])
def test_a_pruned_model_is_served_as_it_was_trained(tmp_path: Path, chunks: int, wide: bool) -> None:
    trained = Trained(tmp_path, rows=RowConfig.model_validate({"dim": 4, "chunks": chunks, "wide": wide}))
    followed, late = ModelCopy(trained.spec), ModelCopy(trained.spec)
    base = trained.train(8).take()
    bring(followed, trained, base)
    bring(late, trained, base)
    for number, share in enumerate((0.5, 0.9, 0.2)):  # deltas: chunks are pruned and come back, of old rows too
        pruned = trained.prune(share).take()
        newest = trained.train(2, forget_after=6).take()
        for checkpoint in (pruned, newest):
            bring(followed, trained, checkpoint)
            check(followed, trained, checkpoint)
        if number == 1:
            assert trained.live_share < 0.3
            trained.compact(first=1)
    fresh = ModelCopy(trained.spec)
    for copy in (late, fresh):
        bring(copy, trained, newest)
        check(copy, trained, newest)
    trained.deal(3)
    trained.is_full = True
    dealt = trained.prune(0.9).train(2).take()
    bring(followed, trained, dealt)
    check(followed, trained, dealt)
    assert followed.table.are_new_keys_bare
    bring(followed, trained, base)  # back, to chunks that were pruned since
    check(followed, trained, base)
    assert not followed.table.are_new_keys_bare


@pytest.mark.parametrize(("chunks", "wide"), [(1, True), (2, False), (4, True)])
def test_a_model_that_has_dropped_columns_is_served_as_it_was_trained(tmp_path: Path, chunks: int, wide: bool) -> None:
    trained = Trained(tmp_path, rows=RowConfig.model_validate({"dim": 8, "chunks": chunks, "wide": wide}))
    followed = ModelCopy(trained.spec)
    whole = trained.train(8).take()
    bring(followed, trained, whole)
    before = followed.table.nbytes
    narrow = trained.drop_columns(0.5).take()
    bring(followed, trained, narrow)
    check(followed, trained, narrow)
    assert followed.table.kept == trained.kept
    assert followed.table.nbytes < before - 0.4 * trained.known * 8 * 4
    newest = trained.prune(0.5).train(2, forget_after=6).take()
    trained.compact(first=0)
    last = trained.train(1).take()
    for checkpoint in (newest, last, whole, last):  # back, to columns that were dropped since, and forth again
        bring(followed, trained, checkpoint)
        check(followed, trained, checkpoint)
    fresh = ModelCopy(trained.spec)
    bring(fresh, trained, last)
    check(fresh, trained, last)


@pytest.mark.parametrize("kept", [(0, 1), (3, 2), (0, 9), (0,)])
def test_columns_that_rows_cannot_have_kept_are_refused(tmp_path: Path, kept: tuple[int, ...]) -> None:
    trained = Trained(tmp_path, rows=RowConfig(dim=4, chunks=2))
    number = trained.train(2).take()
    manifest = msgspec.structs.replace(read_manifest(trained.storage, number), columns=kept)
    with pytest.raises(CheckpointDamaged, match="expected as many of each of the 2 chunks of 4 columns"):
        load(trained.storage, manifest, ModelCopy(trained.spec))


def test_a_new_line_is_loaded_as_a_whole(tmp_path: Path) -> None:
    trained = Trained(tmp_path)
    copy = ModelCopy(trained.spec)
    first = trained.train().take()
    bring(copy, trained, trained.train().take())
    trained.decide_anew(first)
    other = trained.train(1).take()
    assert bring(copy, trained, other).since is None
    check(copy, trained, other)


def test_a_model_that_was_never_trained_answers_with_start_values(tmp_path: Path) -> None:
    trained = Trained(tmp_path)
    copy = ModelCopy(trained.spec)
    bring(copy, trained, trained.take())
    check(copy, trained, 1)


@pytest.mark.parametrize(
    "rows", [RowConfig(dim=4, wide=False, optimizer="sgd"), RowConfig(dim=4, float_dtype="float64")]
)
def test_other_rows_are_served_in_float32(rows: RowConfig, tmp_path: Path) -> None:
    trained = Trained(tmp_path, rows=rows)
    copy = ModelCopy(trained.spec)
    bring(copy, trained, trained.train().take())
    check(copy, trained, 1)


def test_half_precision_rounds_rows_and_halves_their_memory(tmp_path: Path) -> None:
    trained = Trained(tmp_path)
    bring(copy := ModelCopy(trained.spec), trained, trained.train().take())
    bring(half := ModelCopy(replace(trained.spec, row_dtype=torch.float16)), trained, 1)
    assert 0 < np.abs(half.predict(PROBE) - copy.predict(PROBE)).max() < 1e-3
    assert half.table.nbytes < copy.table.nbytes

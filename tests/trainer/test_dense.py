"""Flat dense weights: the same model, the same optimizer, and a file that gives them back."""

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from infra.base.errors import ConfigError, FileUnusable, WireError
from ps.dense.range import pieces_of
from ps.protocol import BARE, WHOLE
from trainer.config import ModelConfig
from trainer.dense import Dense, load_dense, save_dense
from trainer.models.layers import ClickModel
from trainer.models.registry import build_model

CPU = torch.device("cpu")


def built(
    optimizer: Literal["adam", "sgd"] = "adam", seed: int = 0, mlp: tuple[int, ...] = (5, 3)
) -> tuple[ClickModel, ModelConfig]:
    config = ModelConfig(name="dcn", mlp=mlp, dense_optimizer=optimizer, dense_rate=0.1)
    return build_model(config, 2, 3, 1, seed, torch.float64, CPU), config


def loss(model: ClickModel) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    embeddings, dense = (torch.randn(s, generator=generator, dtype=torch.float64) for s in ((6, 2, 3), (6, 1)))
    return model(embeddings, None, dense).square().sum()


def trained(model: ClickModel, dense: Dense, steps: int) -> None:
    for _ in range(steps):
        dense.clear()
        torch.autograd.backward(loss(model))
        dense.step()


def test_flat_weights_leave_the_model_as_it_was() -> None:
    (plain, _), (model, config) = built(), built()
    Dense(model, config)
    torch.testing.assert_close(loss(model), loss(plain), rtol=0, atol=0)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_flat_optimizer_equals_one_a_layer(optimizer: Literal["adam", "sgd"]) -> None:
    (plain, _), (model, config) = built(optimizer), built(optimizer)
    trained(model, Dense(model, config), steps=5)
    one_a_layer = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optimizer](plain.parameters(), lr=0.1)
    for _ in range(5):
        one_a_layer.zero_grad()
        torch.autograd.backward(loss(plain))
        one_a_layer.step()
    for flat, layer in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(flat, layer)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_training_goes_on_from_a_file_as_if_never_stopped(optimizer: Literal["adam", "sgd"], tmp_path: Path) -> None:
    model, config = built(optimizer)
    dense = Dense(model, config)
    trained(model, dense, steps=3)
    save_dense(tmp_path / "dense.safetensors", dense, {"step": 3})
    trained(model, dense, steps=2)
    other, _ = built(optimizer, seed=1)
    again = Dense(other, config)
    load_dense(tmp_path / "dense.safetensors", again)
    trained(other, again, steps=2)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_saving_leaves_only_the_whole_file(tmp_path: Path) -> None:
    save_dense(tmp_path / "dense.safetensors", Dense(*built()), {})
    assert [path.name for path in tmp_path.iterdir()] == ["dense.safetensors"]


def test_reader_of_the_file_before_sees_all_of_it_while_a_new_one_is_saved(tmp_path: Path) -> None:
    path = tmp_path / "dense.safetensors"
    save_dense(path, Dense(*built(seed=1)), {})
    before = path.read_bytes()
    with path.open("rb") as reader:
        save_dense(path, Dense(*built(seed=2)), {})
        assert reader.read() == before != path.read_bytes()


def test_file_of_another_model_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    save_dense(tmp_path / "dense.safetensors", Dense(*built(mlp=(5, 4))), {})
    dense = Dense(*built())
    before = [tensor.clone() for tensor in dense.tensors()]
    with pytest.raises(ConfigError, match="does not fit"):
        load_dense(tmp_path / "dense.safetensors", dense)
    assert all(torch.equal(a, b) for a, b in zip(before, dense.tensors(), strict=True))


def test_a_file_with_a_changed_bit_is_named_and_changes_nothing(tmp_path: Path) -> None:
    path, dense = tmp_path / "dense.safetensors", Dense(*built())
    save_dense(path, Dense(*built(seed=1)), {"step": 3})
    whole, before = path.read_bytes(), [tensor.clone() for tensor in dense.tensors()]
    for place in (0, 9, 40, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(FileUnusable, match=f"{path} is damaged"):
            load_dense(path, dense)
    assert all(torch.equal(a, b) for a, b in zip(before, dense.tensors(), strict=True))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("shards", [1, 3, 1000])
def test_weights_and_state_come_back_from_any_number_of_shards(optimizer: Literal["adam", "sgd"], shards: int) -> None:
    (model, config), (other, _) = built(optimizer), built(optimizer, seed=1)
    dense, copy = Dense(model, config), Dense(other, config)
    trained(model, dense, steps=3)
    for shard, floats in enumerate(dense.ranges(WHOLE, shards).ranges):
        copy.put(WHOLE, shard, shards, floats)
    assert all(torch.equal(a, b) for a, b in zip(dense.tensors(), copy.tensors(), strict=True))


def test_gradients_for_the_shards_are_a_copy() -> None:
    model, config = built()
    dense = Dense(model, config)
    torch.autograd.backward(loss(model))
    before, sent = dense.gradients.clone(), dense.ranges(BARE, 2)
    dense.clear()
    assert torch.equal(torch.cat([torch.from_numpy(each) for each in sent.ranges]), before)
    assert sent.nbytes == before.nbytes


@pytest.mark.parametrize("shards", [1, 3])
def test_weights_come_back_piece_by_piece(shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ps.dense.range.LEAST_PIECE_BYTES", 64)
    (model, config), (other, _) = built(), built(seed=1)
    dense, copy = Dense(model, config), Dense(other, config)
    pieces, weights = 0, dense.weights.numpy()
    for shard in range(shards):
        own = weights[len(weights) * shard // shards : len(weights) * (shard + 1) // shards]
        for piece, place in enumerate(pieces_of(own.size, own.itemsize)):
            copy.put(BARE, shard, shards, own[place], range(piece, piece + 1))
            pieces += 1
    assert pieces == 8 * shards
    assert torch.equal(dense.weights, copy.weights)


def test_neighbouring_pieces_come_back_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ps.dense.range.LEAST_PIECE_BYTES", 64)
    (model, config), (other, _) = built(), built(seed=1)
    dense, copy = Dense(model, config), Dense(other, config)
    weights = dense.weights.numpy()
    places = pieces_of(weights.size, weights.itemsize)
    for pieces in (range(3), range(3, 8)):
        copy.put(BARE, 0, 1, weights[places[pieces.start].start : places[pieces.stop - 1].stop], pieces)
    assert torch.equal(dense.weights, copy.weights)


@pytest.mark.parametrize("form", [BARE, WHOLE])
def test_a_range_of_another_length_is_an_error_and_changes_nothing(form: int) -> None:
    model, config = built()
    dense = Dense(model, config)
    before = dense.weights.clone()
    with pytest.raises(WireError, match="shard 1 answered with 1 floats of dense weights"):
        dense.put(form, 1, 2, np.zeros(1))
    assert torch.equal(dense.weights, before)

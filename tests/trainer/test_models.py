"""Every model of the registry: shapes, gradients, the wide part, absent dense inputs, the start."""

import math
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from infra.base.errors import ConfigError
from trainer.config import ModelConfig
from trainer.dense import Dense
from trainer.models.dcn import Dcn
from trainer.models.deepfm import pairwise_products
from trainer.models.dlrm import Dlrm
from trainer.models.layers import ClickModel
from trainer.models.ncf import Ncf
from trainer.models.registry import MODELS, build_model
from trainer.models.size import dense_weights

B, F, D, N = 5, 4, 6, 3
CPU = torch.device("cpu")
every_model = pytest.mark.parametrize("name", sorted(MODELS))


def built(name: str, fields: int = F, dense: int = N, seed: int = 0, **settings: object) -> ClickModel:
    config = ModelConfig.model_validate({"name": name, "mlp": (7, 5), **settings})
    return build_model(config, fields, D, dense, seed, torch.float64, CPU)


def inputs(fields: int = F, dense: int = N) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = ((B, fields, D), (B, fields), (B, dense))
    embeddings, wide, floats = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    return embeddings.requires_grad_(), wide.requires_grad_(), floats


def must_be(scales: Tensor | None) -> Tensor:
    assert scales is not None
    return scales


def stirred(model: ClickModel) -> ClickModel:
    """The same model with every weight off its start, so that no gradient is 0 by construction."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator, dtype=weight.dtype) * 0.3)
    return model


@every_model
@pytest.mark.parametrize(("fields", "dense"), [(F, N), (F, 0), (2, 0)])
def test_one_finite_logit_a_sample(name: str, fields: int, dense: int) -> None:
    logits = stirred(built(name, fields, dense))(*inputs(fields, dense))
    assert logits.shape == (B,)
    assert torch.isfinite(logits).all()


@every_model
@pytest.mark.parametrize(("fields", "dense"), [(F, N), (F, 0), (2, 0)])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"mlp": ()},
        {"mlp": (9,), "cross_layers": 3},
        {"cross": "low_rank", "cross_rank": 3},
        {"cross": "vector", "cross_layers": 3},
    ],
)
def test_the_number_of_weights_is_known_without_building_the_model(
    name: str, fields: int, dense: int, settings: dict[str, Any]
) -> None:
    config = ModelConfig.model_validate({"name": name, "mlp": (7, 5), **settings})
    weights = sum(weight.numel() for weight in built(name, fields, dense, **settings).parameters())
    assert dense_weights(config, fields, D, dense) == weights
    three = build_model(config, fields, D, dense, 0, torch.float64, CPU, labels=3)
    assert dense_weights(config, fields, D, dense, labels=3) == sum(weight.numel() for weight in three.parameters())


@every_model
def test_no_samples_give_no_logits(name: str) -> None:
    embeddings, wide, dense = inputs()
    assert built(name)(embeddings[:0], wide[:0], dense[:0]).shape == (0,)


@every_model
def test_output_starts_at_the_base_rate(name: str) -> None:
    embeddings, wide, dense = inputs()
    logits = built(name, base_rate=0.1)(torch.zeros_like(embeddings), torch.zeros_like(wide), dense)
    torch.testing.assert_close(torch.sigmoid(logits), torch.full((B,), 0.1, dtype=torch.float64))


@every_model
def test_gradients_reach_every_weight_and_every_embedding(name: str) -> None:
    model, (embeddings, wide, dense) = stirred(built(name, cross_layers=3)), inputs()
    torch.autograd.backward(model(embeddings, wide, dense).square().sum())
    assert embeddings.grad is not None
    assert embeddings.grad.abs().sum((0, 2)).min() > 0
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in model.parameters())


@every_model
def test_gradients_equal_finite_differences(name: str) -> None:
    model, (embeddings, wide, dense) = stirred(built(name)), inputs()
    assert torch.autograd.gradcheck(lambda e, w: model(e, w, dense), (embeddings, wide))


@every_model
def test_start_depends_on_the_seed_alone(name: str) -> None:
    first = built(name, seed=5)
    torch.manual_seed(123)
    again, other = built(name, seed=5), built(name, seed=6)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


@every_model
def test_building_leaves_the_global_generator_alone(name: str) -> None:
    torch.manual_seed(9)
    before = torch.get_rng_state()
    built(name)
    assert torch.equal(torch.get_rng_state(), before)


@every_model
def test_building_loads_nothing_of_the_compiler(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, "torch.fx.experimental.symbolic_shapes", None)
    built(name)


def test_pairwise_products_equal_the_double_loop() -> None:
    embeddings = inputs()[0]
    pairs = [(i, j) for i in range(F) for j in range(i + 1, F)]
    slow = torch.stack([embeddings[:, i] * embeddings[:, j] for i, j in pairs]).sum(0)
    torch.testing.assert_close(pairwise_products(embeddings), slow)


def crossed_once(cross: str) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Inputs, what one cross layer makes of them, and its weights."""
    model = built("dcn", cross_layers=1, cross=cross, cross_rank=2)
    assert isinstance(model, Dcn)
    start = torch.randn(B, F * D + N, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    return start, model.crossed(start), list(model.cross[0].parameters())


def test_matrix_cross_multiplies_by_the_inputs() -> None:
    start, crossed, (weight, bias) = crossed_once("matrix")
    torch.testing.assert_close(crossed, start * (start @ weight.T + bias) + start)


def test_low_rank_cross_goes_through_a_product_of_two_matrices() -> None:
    start, crossed, (down, up, bias) = crossed_once("low_rank")
    assert (down.shape, up.shape) == ((2, F * D + N), (F * D + N, 2))
    torch.testing.assert_close(crossed, start * (start @ (up @ down).T + bias) + start)


def test_vector_cross_is_that_of_the_first_dcn() -> None:
    start, crossed, (weight, bias) = crossed_once("vector")
    slow = [start[b] * (start[b] @ weight) + bias + start[b] for b in range(B)]
    torch.testing.assert_close(crossed, torch.stack(slow))


@pytest.mark.parametrize("cross", ["low_rank", "vector"])
def test_gradients_of_other_crosses_equal_finite_differences(cross: str) -> None:
    model, (embeddings, wide, dense) = stirred(built("dcn", cross=cross, cross_rank=2)), inputs()
    assert torch.autograd.gradcheck(lambda e, w: model(e, w, dense), (embeddings, wide))


def test_a_rank_that_saves_nothing_is_refused() -> None:
    built("dcn", cross="low_rank", cross_rank=F * D + N - 1)
    with pytest.raises(ConfigError, match=r"rank 27 cannot be built on 27 inputs.*model\.cross_rank"):
        built("dcn", cross="low_rank", cross_rank=F * D + N)


def test_dlrm_interacts_every_pair_once() -> None:
    vectors = inputs()[0].detach()
    slow = [(vectors[:, i] * vectors[:, j]).sum(1) for i in range(F) for j in range(i + 1, F)]
    model = built("dlrm", dense=0)
    assert isinstance(model, Dlrm)
    torch.testing.assert_close(model.products(vectors), torch.stack(slow, 1))


def test_ncf_needs_a_user_and_an_item() -> None:
    with pytest.raises(ConfigError, match="user"):
        built("ncf", fields=1)


def test_ncf_factors_only_user_and_item() -> None:
    model, (embeddings, _, dense) = stirred(built("ncf")), inputs()
    assert isinstance(model, Ncf)
    torch.autograd.backward(model(embeddings, None, dense).sum())
    assert embeddings.grad is not None
    assert embeddings.grad[:, 2:, : model.product_dim].abs().sum() == 0


@every_model
def test_the_wide_weight_of_a_key_counts_by_the_scale_of_its_field(name: str) -> None:
    model, (embeddings, wide, dense) = built(name), inputs()
    torch.testing.assert_close(model.output.scales(), torch.ones(F, dtype=torch.float64))
    stirred(model)
    scales = must_be(model.output.scales())
    added = model(embeddings, wide, dense) - model(embeddings, None, dense)
    torch.testing.assert_close(added, (wide * scales).sum(1))


@every_model
def test_without_a_rate_there_are_no_scales(name: str) -> None:
    model, (embeddings, wide, dense) = stirred(built(name, scale_rate=0)), inputs()
    assert model.output.scales() is None
    added = model(embeddings, wide, dense) - model(embeddings, None, dense)
    torch.testing.assert_close(added, wide.sum(1))


@pytest.mark.parametrize(("optimizer", "moved"), [("adam", [-0.06, 0.06, -0.06, 0.06]), ("sgd", [-0.12, 0.03, -3, 6])])
def test_scales_learn_at_a_rate_of_their_own(optimizer: str, moved: list[float]) -> None:
    config = ModelConfig.model_validate({"dense_optimizer": optimizer, "dense_rate": 0.002, "scale_rate": 0.06})
    model = build_model(config, F, D, N, 0, torch.float64, CPU)
    dense, gradients = Dense(model, config), torch.tensor([2.0, -0.5, 50.0, -100.0], dtype=torch.float64)
    torch.autograd.backward((must_be(model.output.scales()) * gradients).sum())
    dense.step()
    torch.testing.assert_close(must_be(model.output.scales()) - 1, torch.tensor(moved, dtype=torch.float64))


def test_bias_is_the_log_odds_of_the_base_rate() -> None:
    bias = built("wdl", base_rate=0.2).get_parameter("output.bias")
    assert bias.item() == pytest.approx(math.log(0.25))

"""Attention: how much each value of a list counts; the shares of padding are 0."""

import numpy as np
import pytest
import torch

from ingest.schema import ListPool
from trainer.config import ModelConfig
from trainer.models.layers import ATTENTION_UNIT, Attention, ClickModel
from trainer.models.registry import build_model
from trainer.models.size import dense_weights

DIM = 4
POOLS = (ListPool(1, 3, attends=True, query=0), ListPool(4, 2), ListPool(6, 2, attends=True))
SHARES = torch.tensor([[2.0, 0.5, 0.0, 0.25, 0.75, 1.0, 1.0], [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
EMBEDDINGS = torch.randn(2, 8, DIM, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def attentive() -> ClickModel:
    """A model with attention that has learnt something."""
    model = build_model(ModelConfig(name="wdl"), 8, DIM, 0, 5, torch.float64, torch.device("cpu"), pools=POOLS)
    generator = torch.Generator().manual_seed(7)
    for weight in model.parameters():
        weight.data.normal_(generator=generator)
    return model


def test_values_count_by_their_product_with_the_query_and_their_share() -> None:
    model = attentive()
    weights = dict(model.attention[0].named_parameters())
    asked = ATTENTION_UNIT * (weights["weight"] @ EMBEDDINGS[0, 0] + weights["bias"])
    parts = SHARES[0, :3] * torch.exp(EMBEDDINGS[0, 1:4] @ asked)
    counted = model.attend(EMBEDDINGS, SHARES)
    torch.testing.assert_close(counted[0, :3], parts / parts.sum())
    torch.testing.assert_close(counted[:, 3:5], SHARES[:, 3:5])


def test_a_list_without_shares_counts_nothing_and_has_finite_gradients() -> None:
    embeddings = EMBEDDINGS.clone().requires_grad_()
    counted = attentive().attend(embeddings, SHARES)
    assert counted[1, 5:].tolist() == [0, 0]
    torch.autograd.backward(counted.square().sum())
    assert embeddings.grad is not None
    assert torch.isfinite(embeddings.grad).all()


@pytest.mark.parametrize("scale", [1, 1e4])
def test_padding_changes_neither_scores_nor_gradients(scale: float) -> None:
    model = attentive()
    found = []
    for padding in (0.0, scale):
        embeddings = EMBEDDINGS.clone()
        embeddings[:, 3] = padding  # of the first list, whose share is 0
        embeddings.requires_grad_()
        logits = model.score(embeddings, torch.zeros(2, 8, dtype=torch.float64), torch.zeros(2, 0), SHARES)
        torch.autograd.backward(logits.sum())
        assert embeddings.grad is not None
        assert not embeddings.grad[:, 3].any()
        found.append((logits.detach(), embeddings.grad))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def test_values_count_by_their_shares_at_the_start() -> None:
    shares = torch.tensor([[3.0, 1.0, 0.0]])
    counted = Attention(DIM, has_query=False)(torch.randn(1, 3, DIM), shares, None)
    np.testing.assert_array_equal(counted.detach().numpy(), [[0.75, 0.25, 0]])


def test_the_weights_of_attention_are_counted_without_building_the_model() -> None:
    weights = sum(weight.numel() for weight in attentive().parameters())
    assert dense_weights(ModelConfig(name="wdl"), 4, DIM, 0, pools=POOLS) == weights

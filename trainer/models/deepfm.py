"""DeepFM: a factorization machine over the embeddings next to an MLP (Guo et al. 2017).

Its first-order part is the wide part. Its second-order part, all pairwise products, is summed over pairs but not over
columns: the output layer weights each column, starting from 0, so that embeddings that learn fast do not make the first
logits swing.
"""

import torch
from torch import Tensor

from trainer.config import ModelConfig
from trainer.models.layers import ClickModel, Output, flat_inputs, mlp


class DeepFm(ClickModel):
    """Pairwise products and an MLP on the same embeddings."""

    def __init__(
        self, config: ModelConfig, fields: int, dim: int, dense: int, wide: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        inputs = fields * dim + dense
        self.deep = mlp(inputs, config.mlp, generator)
        self.output = Output(dim + (inputs, *config.mlp)[-1], config, wide)

    def forward(self, embeddings_BFD: Tensor, wide_BF: Tensor | None, dense_BN: Tensor) -> Tensor:
        deep_BH = self.deep(flat_inputs(embeddings_BFD, dense_BN))
        logits_B: Tensor = self.output(torch.cat([pairwise_products(embeddings_BFD), deep_BH], 1), wide_BF)
        return logits_B


def pairwise_products(embeddings_BFD: Tensor) -> Tensor:
    """Sum over all pairs of fields of their product, column by column, in time linear in the fields."""
    square_of_sum_BD = embeddings_BFD.sum(1).square()
    sum_of_squares_BD = embeddings_BFD.square().sum(1)
    return 0.5 * (square_of_sum_BD - sum_of_squares_BD)

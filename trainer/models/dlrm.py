"""DLRM: dot products between all embeddings and the embedded dense inputs feed an MLP (Naumov et al. 2019)."""

import torch
from torch import Tensor

from trainer.config import ModelConfig
from trainer.models.layers import ClickModel, Output, flat_inputs, mlp


class Dlrm(ClickModel):
    """Pairwise interactions of F embeddings, and of the dense inputs projected to the same width if there are any."""

    pairs: Tensor

    def __init__(
        self, config: ModelConfig, fields: int, dim: int, dense: int, wide: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        vectors = fields + (1 if dense else 0)
        self.bottom = mlp(dense, (dim,), generator) if dense else None
        first, second = torch.triu_indices(vectors, vectors, offset=1)
        self.register_buffer("pairs", first * vectors + second, persistent=False)
        inputs = vectors * dim + len(first)
        self.top = mlp(inputs, config.mlp, generator)
        self.output = Output((inputs, *config.mlp)[-1], config, wide)

    def forward(self, embeddings_BFD: Tensor, wide_BF: Tensor | None, dense_BN: Tensor) -> Tensor:
        vectors_BVD = embeddings_BFD
        if self.bottom is not None:
            vectors_BVD = torch.cat([embeddings_BFD, self.bottom(dense_BN).unsqueeze(1)], 1)
        logits_B: Tensor = self.output(self.top(flat_inputs(vectors_BVD, self.products(vectors_BVD))), wide_BF)
        return logits_B

    def products(self, vectors_BVD: Tensor) -> Tensor:
        """Dot product of every pair of vectors, each pair once."""
        products_BVV = torch.bmm(vectors_BVD, vectors_BVD.transpose(1, 2))
        return products_BVV.flatten(1).index_select(1, self.pairs)

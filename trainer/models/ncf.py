"""NCF (NeuMF): an element-wise product of user and item next to an MLP (He et al. 2017).

The first two fields are the user and the item; further fields, and dense inputs, are context that only the MLP uses.
NeuMF has two embeddings per key; here the first half of the row's columns feeds the product, the second half the MLP.
"""

import torch
from torch import Tensor

from infra.base.errors import ConfigError
from trainer.config import ModelConfig
from trainer.models.layers import ClickModel, Output, flat_inputs, mlp


class Ncf(ClickModel):
    """Matrix factorization and an MLP, joined in the output layer."""

    def __init__(
        self, config: ModelConfig, fields: int, dim: int, dense: int, wide: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        if fields < 2 or dim < 2:
            raise ConfigError(
                f"model ncf cannot use {fields} keys a sample of dim {dim}; it needs a user, an item and dim ≥ 2; "
                "choose another model"
            )
        self.product_dim = dim // 2
        inputs = fields * (dim - self.product_dim) + dense
        self.deep = mlp(inputs, config.mlp, generator)
        self.output = Output(self.product_dim + (inputs, *config.mlp)[-1], config, wide)

    def forward(self, embeddings_BFD: Tensor, wide_BF: Tensor | None, dense_BN: Tensor) -> Tensor:
        factors_BFP = embeddings_BFD[..., : self.product_dim]
        product_BP = factors_BFP[:, 0] * factors_BFP[:, 1]
        deep_BH = self.deep(flat_inputs(embeddings_BFD[..., self.product_dim :], dense_BN))
        logits_B: Tensor = self.output(torch.cat([product_BP, deep_BH], 1), wide_BF)
        return logits_B

"""Wide & Deep: an MLP over all inputs next to the wide weights (Cheng et al. 2016)."""

import torch
from torch import Tensor

from trainer.config import ModelConfig
from trainer.models.layers import ClickModel, Output, flat_inputs, mlp


class Wdl(ClickModel):
    """An MLP next to the wide part."""

    def __init__(
        self, config: ModelConfig, fields: int, dim: int, dense: int, wide: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        inputs = fields * dim + dense
        self.deep = mlp(inputs, config.mlp, generator)
        self.output = Output((inputs, *config.mlp)[-1], config, wide)

    def forward(self, embeddings_BFD: Tensor, wide_BF: Tensor | None, dense_BN: Tensor) -> Tensor:
        logits_B: Tensor = self.output(self.deep(flat_inputs(embeddings_BFD, dense_BN)), wide_BF)
        return logits_B

"""DCN-v2: full-rank cross layers beside an MLP, both on the same inputs (Wang et al. 2021, parallel form)."""

import torch
from torch import Tensor, nn

from trainer.config import ModelConfig
from trainer.models.layers import ClickModel, Output, flat_inputs, linear, mlp


class Dcn(ClickModel):
    """Explicit feature crosses of bounded degree, and an MLP for the rest."""

    def __init__(self, config: ModelConfig, fields: int, dim: int, dense: int, generator: torch.Generator) -> None:
        super().__init__()
        inputs = fields * dim + dense
        self.cross = nn.ModuleList(linear(inputs, inputs, generator) for _ in range(config.cross_layers))
        self.deep = mlp(inputs, config.mlp, generator)
        self.output = Output(inputs + (inputs, *config.mlp)[-1], config.base_rate)

    def forward(self, embeddings_BFD: Tensor, wide_BF: Tensor | None, dense_BN: Tensor) -> Tensor:
        start_BI = flat_inputs(embeddings_BFD, dense_BN)
        logits_B: Tensor = self.output(torch.cat([self.crossed(start_BI), self.deep(start_BI)], 1), wide_BF)
        return logits_B

    def crossed(self, start_BI: Tensor) -> Tensor:
        """Each layer multiplies what came before by the inputs once more, and adds it."""
        crossed_BI = start_BI
        for layer in self.cross:
            crossed_BI = torch.addcmul(crossed_BI, start_BI, layer(crossed_BI))
        return crossed_BI

"""Deep & Cross: cross layers next to an MLP, both on the same inputs (Wang et al. 2021, parallel form).

Legend: B samples, I inputs, R rank.

A cross layer multiplies the output of the layer before by the inputs once more, and adds it. ``model.cross`` chooses
the weights between the two:

* ``matrix``, DCN-v2: a full matrix, I·I weights;
* ``low_rank``, DCN-v2 with the matrix as a product of two, 2·I·R weights;
* ``vector``, the first DCN: a single vector, I weights.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from trainer.config import CrossKind, ModelConfig, check_cross
from trainer.models.layers import ClickModel, Output, flat_inputs, linear, mlp, vector


class MatrixCross(nn.Module):
    """start ⊙ (W·crossed + b) + crossed."""

    def __init__(self, inputs: int, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.through = linear(inputs, inputs, generator)

    def forward(self, start_BI: Tensor, crossed_BI: Tensor) -> Tensor:
        return torch.addcmul(crossed_BI, start_BI, self.through(crossed_BI))


class LowRankCross(nn.Module):
    """start ⊙ (U·(V·crossed) + b) + crossed."""

    def __init__(self, inputs: int, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        check_cross(config, inputs)
        self.down = vector((config.cross_rank, inputs), inputs, generator)
        self.up = linear(config.cross_rank, inputs, generator)

    def forward(self, start_BI: Tensor, crossed_BI: Tensor) -> Tensor:
        return torch.addcmul(crossed_BI, start_BI, self.up(crossed_BI @ self.down.T))


class VectorCross(nn.Module):
    """start · (w·crossed) + b + crossed."""

    def __init__(self, inputs: int, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = vector((inputs,), inputs, generator)
        self.bias = vector((inputs,), inputs, generator)

    def forward(self, start_BI: Tensor, crossed_BI: Tensor) -> Tensor:
        return torch.addcmul(crossed_BI + self.bias, start_BI, (crossed_BI @ self.weight)[:, None])


CROSSES: Mapping[CrossKind, Callable[[int, ModelConfig, torch.Generator], nn.Module]] = {
    "matrix": MatrixCross,
    "low_rank": LowRankCross,
    "vector": VectorCross,
}


class Dcn(ClickModel):
    """Explicit feature crosses of bounded degree, and an MLP for the rest."""

    def __init__(
        self, config: ModelConfig, fields: int, dim: int, dense: int, wide: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        inputs = fields * dim + dense
        layer = CROSSES[config.cross]
        self.cross = nn.ModuleList(layer(inputs, config, generator) for _ in range(config.cross_layers))
        self.deep = mlp(inputs, config.mlp, generator)
        self.output = Output(inputs + (inputs, *config.mlp)[-1], config, wide)

    def forward(self, embeddings_BFD: Tensor, wide_BF: Tensor | None, dense_BN: Tensor) -> Tensor:
        start_BI = flat_inputs(embeddings_BFD, dense_BN)
        logits_B: Tensor = self.output(torch.cat([self.crossed(start_BI), self.deep(start_BI)], 1), wide_BF)
        return logits_B

    def crossed(self, start_BI: Tensor) -> Tensor:
        """The inputs after all cross layers."""
        crossed_BI = start_BI
        for layer in self.cross:
            crossed_BI = layer(start_BI, crossed_BI)
        return crossed_BI

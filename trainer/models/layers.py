"""What the models share: the click model's interface, layers drawn from a given generator, and the output layer.

Legend: B samples, F keys per sample, E of them with embeddings, D embedding columns, N dense inputs, P keys of pooled
tables, v keys of one of them, M labels, H width of a hidden vector.

Every weight is drawn from the given generator and never from torch's global state, so a model is a function of its
seed. The output layer starts at 0 and its bias at the log-odds of the base rate: before training a model predicts the
base rate, and the first gradients are those of a good guess.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from ingest.schema import ListPool
from trainer.config import ModelConfig

Pools = tuple[ListPool, ...]
ATTENTION_UNIT = 16.0
"""What a weight of attention counts: vectors of rows are short, so that with units of 1 the products of a query and the
values would differ too little for long.
"""


class ClickModel(nn.Module, ABC):
    """The dense part of a click model; its inputs are rows that were already looked up."""

    output: "Output"
    fields: int
    """Keys of a sample whose embeddings are inputs, the first ones; wide weights are those of all keys."""
    pools: Pools = ()
    """The keys of each pooled table: the model gets one vector for all of them."""
    attention: nn.ModuleList
    """How much each value counts, for each pool that attends."""

    def score(
        self, embeddings_BED: Tensor, wide_BF: Tensor | None, dense_BN: Tensor, shares_BP: Tensor | None = None
    ) -> Tensor:
        """Returns logits_B from the rows of all keys, or logits_BM if there are several labels; shares_BP: those of
        the keys of pooled tables.
        """
        if shares_BP is not None:
            shares_BP = self.attend(embeddings_BED, shares_BP)
            embeddings_BED = pool(embeddings_BED, shares_BP, self.pools)
            wide_BF = None if wide_BF is None else pool(wide_BF.unsqueeze(2), shares_BP, self.pools).squeeze(2)
        return self(embeddings_BED, wide_BF, dense_BN)

    def attend(self, embeddings_BED: Tensor, shares_BP: Tensor) -> Tensor:
        """The shares with those of each pool that attends replaced by what its values count."""
        parts = list(torch.split(shares_BP, [pool.values for pool in self.pools], 1))
        attending = [place for place, pool in enumerate(self.pools) if pool.attends]
        for place, attention in zip(attending, self.attention, strict=True):
            pool = self.pools[place]
            query_BD = embeddings_BED[:, pool.query] if pool.query >= 0 else None
            values_BvD = embeddings_BED[:, pool.first : pool.first + pool.values]
            parts[place] = attention(values_BvD, parts[place], query_BD)
        return torch.cat(parts, 1) if attending else shares_BP

    @abstractmethod
    def forward(self, embeddings_BFD: Tensor, wide_BF: Tensor | None, dense_BN: Tensor) -> Tensor:
        """Returns logits_B; wide_BF may have more keys than embeddings_BFD, those of crosses."""

    def __call__(self, embeddings_BFD: Tensor, wide_BF: Tensor | None, dense_BN: Tensor) -> Tensor:
        logits_B: Tensor = super().__call__(embeddings_BFD, wide_BF, dense_BN)
        return logits_B


def pool(values_BKW: Tensor, shares_BP: Tensor, pools: Pools) -> Tensor:
    """The values with those of each pooled table replaced by their sum, by shares."""
    values_BKW = values_BKW.contiguous()  # sums of another layout may round differently
    parts: list[Tensor] = []
    at = 0
    taken = 0
    for first, count, _, _ in pools:
        shares_BvW = shares_BP[:, taken : taken + count].unsqueeze(2)
        summed_B1W = (values_BKW[:, first : first + count] * shares_BvW).sum(1, keepdim=True)
        parts += [values_BKW[:, at:first], summed_B1W]
        at = first + count
        taken += count
    return torch.cat([*parts, values_BKW[:, at:]], 1)


class Attention(nn.Module):
    """How much each value of a list counts: exp of the product of its vector and a query's, times its share.

    What the values of a list count sums to 1. A value without a share counts nothing, so padding has no effect, and a
    list of which no value has a share has a vector of zeros. All values count by their shares at the start.
    """

    def __init__(self, dim: int, has_query: bool) -> None:
        """has_query: whether the query is made from the vector of a key; otherwise it is the same for all samples.

        Weights are in units of ATTENTION_UNIT.
        """
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim, dim)) if has_query else None
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, values_BvD: Tensor, shares_Bv: Tensor, query_BD: Tensor | None) -> Tensor:
        asked_BD = self.bias.expand(len(values_BvD), -1)
        if self.weight is not None:
            assert query_BD is not None, "a query is made from the vector of a key"
            asked_BD = torch.addmm(self.bias, query_BD, self.weight.t())
        scores_Bv = ATTENTION_UNIT * (values_BvD * asked_BD.unsqueeze(1)).sum(2)
        counted_Bv = scores_Bv.masked_fill(shares_Bv == 0, -math.inf)
        highest_B1 = counted_Bv.detach().amax(1, keepdim=True).nan_to_num(neginf=0.0)
        parts_Bv = shares_Bv * torch.exp(counted_Bv - highest_B1)
        total_B1 = parts_Bv.sum(1, keepdim=True)
        return parts_Bv / total_B1.masked_fill(total_B1 == 0, 1.0)


class Output(nn.Module):
    """The last layer: starts at 0, biased to the base rate, plus the sum of the wide weights if there are any.

    Each wide weight counts by the scale of its field: how far a field can be trusted is learnt from all of its keys.
    """

    def __init__(self, width: int, config: ModelConfig, wide: int) -> None:
        """wide: wide weights of a sample."""
        super().__init__()
        base_rate = config.base_rate
        self.weight = nn.Parameter(torch.zeros(width))
        self.bias = nn.Parameter(torch.tensor(math.log(base_rate / (1 - base_rate))))
        self.raw_scales = nn.Parameter(torch.zeros(wide)) if config.scale_rate else None
        """How far each scale is from 1, in units in which it learns at ``scale_rate`` while its weight learns at
        ``dense_rate`` as all others do.
        """
        self._unit = scale_unit(config)
        self.more = nn.ModuleList()
        """The heads of labels after the main one; they have the same inputs."""

    def add_heads(self, heads: int, config: ModelConfig, wide: int) -> None:
        """Adds a head for each further label."""
        self.more.extend(Output(len(self.weight), config, wide) for _ in range(heads))

    def forward(self, hidden_BH: Tensor, wide_BF: Tensor | None) -> Tensor:
        logits_B = torch.mv(hidden_BH, self.weight) + self.bias
        if wide_BF is not None:
            scales_F = self.scales()
            logits_B = logits_B + (wide_BF.sum(1) if scales_F is None else torch.mv(wide_BF, scales_F))
        return torch.stack([logits_B, *(head(hidden_BH, wide_BF) for head in self.more)], 1) if self.more else logits_B

    def scales(self) -> Tensor | None:
        """The scale of each wide weight of a sample; None: all are 1."""
        return None if self.raw_scales is None else 1 + self._unit * self.raw_scales


def scale_unit(config: ModelConfig) -> float:
    """The change of a scale for a change of 1 of its weight.

    The step of Adam does not depend on the size of gradients, that of SGD grows with it: there, a unit counts twice.
    """
    ratio = config.scale_rate / config.dense_rate
    return ratio if config.dense_optimizer == "adam" else math.sqrt(ratio)


def linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """A linear layer with torch's usual start values, drawn from the generator.

    Does not use ``to_empty``, which loads sympy: half a second of processor time in every worker.
    """
    layer = nn.Linear(inputs, outputs, device="meta")
    layer.weight = vector((outputs, inputs), inputs, generator)
    layer.bias = vector((outputs,), inputs, generator)
    return layer


def vector(shape: tuple[int, ...], inputs: int, generator: torch.Generator) -> nn.Parameter:
    """Weights of any shape that sum that many inputs, with the start values of a linear layer."""
    bound = 1 / math.sqrt(max(inputs, 1))
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound, generator=generator))


def mlp(inputs: int, widths: Sequence[int], generator: torch.Generator) -> nn.Sequential:
    """Linear layers, each followed by a ReLU."""
    layers: list[nn.Module] = []
    for left, right in pairwise((inputs, *widths)):
        layers += [linear(left, right, generator), nn.ReLU()]
    return nn.Sequential(*layers)


def flat_inputs(embeddings_BFD: Tensor, dense_BN: Tensor) -> Tensor:
    """All of a sample's inputs side by side: B × (F·D + N)."""
    flat = embeddings_BFD.flatten(1)
    return torch.cat([flat, dense_BN], 1) if dense_BN.shape[1] else flat

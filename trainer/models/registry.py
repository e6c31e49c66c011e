"""The models by name, and how to build one."""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from trainer.config import ModelConfig
from trainer.models.dcn import Dcn
from trainer.models.deepfm import DeepFm
from trainer.models.dlrm import Dlrm
from trainer.models.layers import Attention, ClickModel, Pools
from trainer.models.ncf import Ncf
from trainer.models.plugged import check_repeatable, plugged
from trainer.models.wdl import Wdl

Build = Callable[[ModelConfig, int, int, int, int, torch.Generator], ClickModel]

MODELS: Mapping[str, Build] = {"wdl": Wdl, "deepfm": DeepFm, "dcn": Dcn, "dlrm": Dlrm, "ncf": Ncf}


def build_model(
    config: ModelConfig,
    fields: int,
    dim: int,
    dense: int,
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
    crosses: int = 0,
    pools: Pools = (),
    labels: int = 1,
) -> ClickModel:
    """The model for E keys of D columns and N dense inputs; equal seeds give equal weights on every machine.

    crosses: further keys of a sample, of which the model uses the wide weights alone. pools: the keys of each pooled
    table, of which it gets one vector. labels: labels that it predicts, each with a head.

    Weights are drawn on the CPU in float32 whatever the device and type, so that all of them start with the same
    numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    vectors = fields - sum(pool.values - 1 for pool in pools)
    build = plugged(config.name) if config.is_plugged else MODELS[config.name]
    model = build(config, vectors, dim, dense, vectors + crosses, generator)
    model.output.add_heads(labels - 1, config, vectors + crosses)
    model.attention = nn.ModuleList(Attention(dim, pool.query >= 0) for pool in pools if pool.attends)
    model = model.to(device, dtype)
    model.fields = fields
    model.pools = pools
    return model


def try_plugged(config: ModelConfig, vectors: int, dim: int, dense: int, crosses: int, labels: int) -> int:
    """Number of dense weights of a model that is not Freshet's own; raises ConfigError if it cannot be trained.

    It is built twice, which must give the same weights.
    """
    cpu = torch.device("cpu")
    first, second = (
        build_model(config, vectors, dim, dense, 0, torch.float32, cpu, crosses, labels=labels) for _ in range(2)
    )
    check_repeatable(config.name, first, second)
    return sum(weight.numel() for weight in first.parameters())

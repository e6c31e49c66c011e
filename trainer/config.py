"""Settings of the model and of the worker. Free of torch, so that every process may read them."""

from typing import Annotated, Literal

from pydantic import Field

from dispatch.dense import Reduce
from infra.base.config import Section
from infra.base.errors import ConfigError

ModelName = Literal["wdl", "deepfm", "dcn", "dlrm", "ncf"]
CrossKind = Literal["matrix", "low_rank", "vector"]

DENSE_FILE = "dense.safetensors"
"""the saved weights, in the run's folder"""
Width = Annotated[int, Field(gt=0)]


class ModelConfig(Section):
    """The dense part of the model, and how it learns."""

    name: ModelName = "dcn"
    """wdl, deepfm, dcn, dlrm or ncf"""
    mlp: tuple[Width, ...] = (128, 64)
    """widths of the hidden layers"""
    cross_layers: int = Field(default=2, ge=1)
    """number of cross layers (dcn only)"""
    cross: CrossKind = "matrix"
    """what a cross layer learns (dcn only): a matrix of inputs × inputs (DCN-v2), two matrices of inputs × cross_rank,
    or a vector (the first DCN); inputs are keys × rows.dim + dense fields"""
    cross_rank: int = Field(default=32, ge=1)
    """rank of low_rank cross layers, below the number of inputs"""
    dense_optimizer: Literal["adam", "sgd"] = "adam"
    """optimizer of the dense weights"""
    dense_rate: float = Field(default=3e-3, gt=0)
    """learning rate of the dense weights"""
    base_rate: float = Field(default=0.25, gt=0, lt=1)
    """click rate expected before anything is learned: the output bias starts at its log-odds"""


def check_cross(config: ModelConfig, inputs: int) -> None:
    """Raises ConfigError for low-rank cross layers that would be no smaller than a matrix."""
    if config.name == "dcn" and config.cross == "low_rank" and config.cross_rank >= inputs:
        raise ConfigError(
            f"cross layers of rank {config.cross_rank} cannot be built on {inputs} inputs; expected model.cross_rank "
            "below the number of inputs; lower it, or set model.cross=matrix"
        )


class TrainerConfig(Section):
    """The worker process."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """where the cache and the model live; auto takes CUDA where there is one"""
    threads: int = Field(default=0, ge=0)
    """threads of torch on the CPU; 0: its share of the cores under 'freshet up', else torch's own choice"""
    reduce: Reduce = "auto"
    """how dense gradients are summed: hub (by the shards, moved by workers that have samples), ring (all-reduced among
    all workers, over NCCL when every worker has a GPU of its own, else Gloo), gloo or nccl (a ring over that); auto: a
    ring where NCCL is possible or the policy replicates rows, else the hub"""
    unencrypted_reduce: bool = False
    """with keys on, allows a ring of several workers: over Gloo or NCCL, which do not encrypt; the hub does"""
    reduce_timeout_seconds: float = Field(default=120.0, gt=0)
    """how long to wait for the other workers in an all-reduce, or when a generation starts"""
    pull_timeout_seconds: float = Field(default=60.0, gt=0)
    """how long to wait for a PS shard's answer"""
    shape_link: bool = True
    """whether a worker whose link has a speed slows its transfers down to it; false where the network does"""
    silence_seconds: float = Field(default=120.0, gt=0)
    """how long the dispatcher may be silent before the worker gives up"""

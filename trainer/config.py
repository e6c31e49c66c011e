"""Settings of the model and of the worker. Does not import torch, so that every process can read them."""

from typing import Annotated, Literal, get_args

from pydantic import Field, field_validator

from dispatch.dense import Reduce
from infra.base.config import Section
from infra.base.errors import ConfigError
from infra.base.plugins import MODELS, find_plugin

ModelName = Literal["wdl", "deepfm", "dcn", "dlrm", "ncf"]
BUILT_IN: tuple[str, ...] = get_args(ModelName)
CrossKind = Literal["matrix", "low_rank", "vector"]

DENSE_FILE = "dense.safetensors"
"""File of the saved dense weights, in the run's folder."""
Width = Annotated[int, Field(gt=0)]


class ModelConfig(Section):
    """The dense part of the model, and how it learns."""

    name: str = "dcn"
    """Architecture: wdl, deepfm, dcn, dlrm or ncf; or a model of your own, by the name of an entry point or as
    module:Name.
    """
    mlp: tuple[Width, ...] = (128, 64)
    """Widths of the hidden layers."""
    cross_layers: int = Field(default=2, ge=1)
    """Number of cross layers (dcn only)."""
    cross: CrossKind = "matrix"
    """What a cross layer learns (dcn only): a matrix of inputs × inputs (DCN-v2), two matrices of inputs × cross_rank,
    or a vector (the first DCN); inputs are keys × rows.dim + dense fields.
    """
    cross_rank: int = Field(default=32, ge=1)
    """Rank of low_rank cross layers; must be below the number of inputs."""
    dense_optimizer: Literal["adam", "sgd"] = "adam"
    """Optimizer of the dense weights."""
    dense_rate: float = Field(default=3e-3, gt=0)
    """Learning rate of the dense weights."""
    scale_rate: float = Field(default=0.06, ge=0)
    """Learning rate of field scales: one factor for each key of a sample, by which its wide weight counts, first 1. 0:
    there are none.
    """
    base_rate: float = Field(default=0.25, gt=0, lt=1)
    """Click rate expected before anything is learnt: the output bias starts at its log-odds."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share by which the labels that are learnt are drawn towards 1/2; metrics are about the labels as they are. It
    costs calibration where clicks are rare. 0: not at all.
    """

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if name not in BUILT_IN:
            find_plugin("model", MODELS, name, BUILT_IN)
        return name

    @property
    def is_plugged(self) -> bool:
        """Whether the model is not one of Freshet's own."""
        return self.name not in BUILT_IN


def check_cross(config: ModelConfig, inputs: int) -> None:
    """Raises ConfigError for low-rank cross layers that would not be smaller than a matrix."""
    if config.name == "dcn" and config.cross == "low_rank" and config.cross_rank >= inputs:
        raise ConfigError(
            f"cross layers of rank {config.cross_rank} cannot be built on {inputs} inputs; expected model.cross_rank "
            "below the number of inputs; lower it, or set model.cross=matrix"
        )


class TrainerConfig(Section):
    """The worker process."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the cache and the model; auto: CUDA if there is a GPU."""
    graphs: bool = True
    """Whether forward and backward are captured as CUDA graphs, which launch all kernels at once; same results."""
    threads: int = Field(default=0, ge=0)
    """Torch threads on the CPU; 0: an equal share of the cores under 'freshet up', otherwise torch's own choice."""
    shared_cores: int = Field(default=0, ge=0)
    """Cores that the workers of this machine share; in each step they are divided among those that have samples. 0:
    threads, in every step. Under 'freshet up' all cores, unless threads is set.
    """
    reduce: Reduce = "auto"
    """How dense gradients are summed: hub (by the shards; only workers with samples send them), ring (all-reduced among
    all workers, over NCCL if every worker has a GPU of its own, otherwise Gloo), gloo or nccl (a ring over that
    library); auto: a ring if NCCL is possible or the policy is fae, otherwise the hub, and with a policy that ends in
    :hot whichever is faster by the clock.
    """
    unencrypted_reduce: bool = False
    """Allows a ring of several workers although keys are in use: Gloo and NCCL do not encrypt; the hub does."""
    reduce_timeout_seconds: float = Field(default=120.0, gt=0)
    """How long to wait for the other workers in an all-reduce, or when a generation starts."""
    pull_timeout_seconds: float = Field(default=60.0, gt=0)
    """How long to wait for the answer of a shard."""
    shape_link: bool = True
    """Whether a worker slows its transfers down to the speed of its link, if it has one; false if the network does
    that.
    """
    silence_seconds: float = Field(default=120.0, gt=0)
    """How long the dispatcher may be silent before the worker gives up."""

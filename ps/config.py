"""Settings of the parameter server: what a row is, and how rows are spread over shards."""

from dataclasses import dataclass
from typing import Literal

from pydantic import Field, field_validator

from infra.base.config import Section, check_endpoint
from ps.protocol import RowShape

HELD_BYTES = 1 << 30
OptimizerName = Literal["sgd", "adagrad", "rowwise_adagrad"]
DenseOptimizerName = Literal["adam", "sgd"]


class RowConfig(Section):
    """What one row holds and how a gradient changes it; the same for workers and shards."""

    dim: int = Field(default=16, ge=1, le=1 << 16)
    """Embedding columns of a row."""
    wide: bool = True
    """Whether a row also has a wide weight, as its last value column."""
    float_dtype: Literal["float32", "float64"] = "float32"
    """Floating-point type of values, state and gradients."""
    optimizer: OptimizerName = "adagrad"
    """How a gradient changes a row."""
    rate: float = Field(default=0.05, gt=0)
    """Learning rate of the embedding columns."""
    wide_rate: float = Field(default=0.03, gt=0)
    """Learning rate of the wide column."""
    initial_accumulator: float = Field(default=1e-4, ge=0)
    """Start value of every Adagrad accumulator, in units of the squared gradient of the loss summed
    over a full batch.
    """
    init_std: float = Field(default=0.02, ge=0)
    """Standard deviation of the start values of embedding columns."""
    eps: float = Field(default=1e-10, ge=0)
    """Added to the root of an accumulator before dividing by it."""

    def shape(self) -> RowShape:
        states = {"sgd": 0, "adagrad": self.dim + self.wide, "rowwise_adagrad": 1 + self.wide}
        return RowShape(self.dim, self.wide, states[self.optimizer])


@dataclass(frozen=True)
class DenseRule:
    """How a gradient changes the dense weights; its values are settings of the model."""

    optimizer: DenseOptimizerName = "adam"
    rate: float = 3e-3


class CheckpointConfig(Section):
    """Checkpoints: the model on disk, from which a run recovers and a snapshot is served."""

    url: str = ""
    """Where checkpoints are stored: a folder, or s3://BUCKET/PREFIX; empty: checkpoints/ in the run's folder."""
    seconds: float = Field(default=30.0, ge=0)
    """Time between two checkpoints; 0: only those that a change of members needs."""
    kept: int = Field(default=3, ge=1)
    """Number of checkpoints that are kept, in addition to pinned ones."""
    deltas: int = Field(default=8, ge=0, le=400)
    """Number of files with changes after a base file before they are merged into a new base file."""
    write_behind: float = Field(default=0.5, ge=0, le=1)
    """Rows that owners write back before the next checkpoint, at most, as a share of a step's pulled rows; has no
    effect without checkpoints.
    """


class PsConfig(Section):
    """How many shards there are, where they listen, and how their memory grows."""

    shards: int = Field(default=2, ge=1)
    """Number of shard processes; row r is on shard r % shards as number r // shards."""
    endpoints: tuple[str, ...] = ()
    """tcp://HOST:PORT of each shard; empty: the supervisor chooses."""
    publisher_endpoints: tuple[str, ...] = ()
    """tcp://HOST:PORT at which each shard publishes files of checkpoints for servers; empty: any free port on the same
    host.
    """
    chunk_rows: int = Field(default=65536, ge=1)
    """Rows by which a shard's memory grows at a time."""
    held_bytes: int = Field(default=HELD_BYTES, ge=1 << 20)
    """Bytes of messages that a shard holds while their round is not announced or not complete; further ones are
    refused.
    """

    @field_validator("endpoints", "publisher_endpoints")
    @classmethod
    def _check_endpoints(cls, endpoints: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(check_endpoint(endpoint) for endpoint in endpoints)

"""Settings of the parameter server: what a row is, and how rows are spread over shards."""

from dataclasses import dataclass
from typing import Literal

from pydantic import Field, field_validator, model_validator

from infra.base.config import Section, check_endpoint
from infra.base.errors import ConfigError
from ps.protocol import RowShape

HELD_BYTES = 1 << 30
KEY_BYTES = 3 * 8
"""Bytes of key, last step and the place of pending gradients."""
PLACE_BYTES = 4
"""Bytes of the place of a chunk."""
WIDE_RATE = 1.4
"""Learning rate of all wide weights of a sample together."""
USUAL_WIDE_RATE = 0.03
"""Learning rate of one, where the number of keys is not known."""
OptimizerName = Literal["sgd", "adagrad", "rowwise_adagrad"]
DenseOptimizerName = Literal["adam", "sgd"]
UtilityName = Literal["gradient", "frequency"]


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
    wide_rate: float | None = Field(default=None, gt=0)
    """Learning rate of the wide column. Not set: 1.4 divided by the keys of a sample, because their wide weights are
    summed and change together.
    """
    initial_accumulator: float = Field(default=1e-4, ge=0)
    """Start value of the Adagrad accumulators of embedding columns, in units of the squared gradient of the loss summed
    over a batch.
    """
    wide_accumulator: float = Field(default=0.1, ge=0)
    """Start value of the Adagrad accumulator of the wide column, in the same units; 0: initial_accumulator."""
    init_std: float = Field(default=0.02, ge=0)
    """Standard deviation of the start values of embedding columns."""
    eps: float = Field(default=1e-10, ge=0)
    """Added to the root of an accumulator before dividing by it."""
    chunks: int = Field(default=0, ge=0, le=8)
    """Chunks of equal width that the embedding columns of a row consist of, each of which can be pruned alone, see
    memory.budget_mb and memory.prune_share; 0: rows are never pruned.
    """
    utility: UtilityName = "gradient"
    """What keeps a chunk from being pruned: how often its row is used, times the norm of its gradient, or the uses
    alone.
    """
    half_life_steps: int = Field(default=4000, ge=1, lt=2**31)
    """Steps after which a use counts half as much."""

    @model_validator(mode="after")
    def _check_chunks(self) -> "RowConfig":
        if self.chunks and (self.chunks not in (1, 2, 4, 8) or self.dim % self.chunks):
            raise ConfigError(
                f"rows of {self.dim} columns cannot be divided into {self.chunks} chunks; expected 1, 2, 4 or 8 chunks "
                "of equal width, or 0 to prune nothing; correct rows.chunks or rows.dim"
            )
        return self

    @property
    def wide_column_rate(self) -> float:
        """Learning rate of the wide column, of rows that are no run's too."""
        return USUAL_WIDE_RATE if self.wide_rate is None else self.wide_rate

    def of_run(self, batch: int, keys: int) -> "RowConfig":
        """The settings as workers and shards use them, for full batches of that many samples of that many keys: the
        accumulators' start in units of the gradient of the mean loss, and the rate of the wide column as a number.
        """
        rate = WIDE_RATE / keys if self.wide_rate is None else self.wide_rate
        starts = {
            "initial_accumulator": self.initial_accumulator / batch**2,
            "wide_accumulator": self.wide_start / batch**2,
        }
        return self.model_copy(update={**starts, "wide_rate": rate})

    @property
    def wide_start(self) -> float:
        """Start value of the wide column's accumulator."""
        return self.wide_accumulator or self.initial_accumulator

    def chunk_bytes(self, columns: tuple[int, ...] = ()) -> int:
        """Bytes of a live chunk on a shard, with its optimizer state.

        columns: those that rows have kept, empty if all.
        """
        width = (len(columns) or self.dim) // max(1, self.chunks)
        return width * (2 if self.optimizer == "adagrad" else 1) * self._float_bytes

    @property
    def key_bytes(self) -> int:
        """Bytes of a known key on a shard: its row, or of a row that can be pruned what remains without live chunks;
        key, last step and pending gradients.
        """
        shape = self.shape()
        if not self.chunks:
            return shape.total * self._float_bytes + KEY_BYTES
        head = shape.total - 1 - self.chunks * self.chunk_bytes() // self._float_bytes  # the mask takes no memory
        return head * self._float_bytes + self.chunks * PLACE_BYTES + KEY_BYTES

    @property
    def _float_bytes(self) -> int:
        return 8 if self.float_dtype == "float64" else 4

    def shape(self) -> RowShape:
        states = {"sgd": 0, "adagrad": self.dim + self.wide, "rowwise_adagrad": 1 + self.wide}
        utilities_and_mask = self.chunks + 1 if self.chunks else 0
        return RowShape(self.dim, self.wide, states[self.optimizer] + utilities_and_mask, self.chunks)


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
    link_gbit: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Speed of the one link through which all workers reach the shards, in Gbit/s; 0: it is not what limits. The costs
    by which samples and workers are chosen count it, and so do plans; 'bench train --network namespaces' shapes it.
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

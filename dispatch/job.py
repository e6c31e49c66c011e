"""The dispatcher's job: everything it needs from files and the environment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dispatch.config import DispatchConfig, MemoryConfig, QualityConfig
from dispatch.dense import Reduce, check_reduce, needs_ring
from dispatch.placement.capacity.room import check_room
from dispatch.placement.policies.spec import Needs
from dispatch.placement.rows.pruning import PruneTerms, profile_of
from dispatch.protocol import unencrypted
from infra.base.agreement import Agreement
from infra.base.errors import ConfigError
from infra.base.wire import Curve
from ingest.config import StreamConfig
from ingest.log.frame_copy import FrameCopy
from ingest.schema import Schema
from ingest.streams.position import Position
from ps.config import CheckpointConfig, RowConfig


@dataclass(frozen=True)
class Golden:
    """A recorded run that is replayed to compare the results."""

    folder: Path
    last_step: int | None = None
    """The last step to replay; None for all recorded steps."""


@dataclass(frozen=True)
class DenseJob:
    """What the dispatcher must know about the dense weights."""

    bytes: int = 0
    """Bytes that a worker with samples pulls, and as many that it pushes, in each step; 0 if none move."""
    state_copies: int = 0
    """Optimizer state of the dense weights, in multiples of their size."""
    reduce: Reduce = "auto"
    """How their gradients are summed."""
    unencrypted_reduce: bool = False
    """Whether workers may sum gradients among themselves, unencrypted, although encryption keys are configured."""


@dataclass(frozen=True)
class GateRule:
    """How far a snapshot may deviate from the served one. These are settings of serving and are explained there."""

    logloss: float = 0.15
    calibration: float = 0.25
    changed_share: float = 0.5
    samples: int = 4096


@dataclass(frozen=True)
class Publishing:
    """How often a snapshot is published while the model is served, and when a snapshot is held back."""

    seconds: float = 1.0
    gate: GateRule = field(default_factory=GateRule)


@dataclass(frozen=True)
class DispatchJob:
    """One run of the dispatcher."""

    run: str
    seed: int
    folder: Path
    """Folder of the run; it contains the journal."""
    stream: StreamConfig
    dispatch: DispatchConfig
    schema: Schema
    rows: RowConfig
    """The contents of a row, which determine how many bytes a move takes."""
    shards: int
    """Number of shards that connect to the dispatcher."""
    server_gbit: float = 0.0
    """Speed of the link that all shards share, in Gbit/s; 0: it is not what limits."""
    dense: DenseJob = field(default_factory=DenseJob)
    storage: str = ""
    """Where checkpoints are stored: a folder or a URL."""
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    publishing: Publishing = field(default_factory=Publishing)
    quality: QualityConfig = field(default_factory=QualityConfig)
    journal_copy: FrameCopy | None = None
    """Where the journal is kept besides the folder."""
    samples: int | None = None
    """Number of samples after which the run stops exactly; None for no limit."""
    mark_at: int | None = None
    """If set, quality and speed are also measured separately over everything after this many samples."""
    stop_at_end: bool = False
    """Whether to stop at what is now the end of the stream, instead of waiting for more events."""
    curve: Curve | None = None
    agreement: Agreement = field(default_factory=Agreement)
    """Settings that must be the same in workers and shards."""
    start: Mapping[int, Position] = field(default_factory=dict)
    """Where to begin in each partition; empty: at the first record of every partition."""
    write_behind: float = 0.0
    """Most owned rows that a worker pushes ahead of the next checkpoint, as a share of the rows it pulls in a step."""
    taken_cores: int = 0
    """Cores of the dispatcher's that workers on the same machine compute on."""
    golden: Golden | None = None
    """The recorded run to replay; its steps are trained again, and nothing else is done. None for a normal run."""

    @property
    def topic(self) -> str:
        """Source and topic of the stream."""
        return f"{self.stream.source}:{self.stream.topic}"

    @property
    def row_bytes(self) -> int:
        """Size of a row with its optimizer state, in bytes."""
        return self.rows.shape().total * np.dtype(self.rows.float_dtype).itemsize

    def row_sizes(self, columns: tuple[int, ...] = ()) -> NDArray[np.float64] | None:
        """Bytes that move of a row, with its state, by its mask, over those of a whole one; None: rows have no chunks.

        Of a pruned chunk nothing moves; the wide column, what the optimizer knows of it, utilities and mask always do.
        columns: those that rows have kept, empty if all.
        """
        chunks = self.rows.chunks
        if not chunks:
            return None
        live_M = np.bitwise_count(np.arange(1 << chunks)).astype(np.int64)
        missing_M = chunks * self.rows.chunk_bytes() - live_M * self.rows.chunk_bytes(columns)
        return np.asarray(1.0 - missing_M / self.row_bytes)

    def prune_terms(self) -> PruneTerms:
        """What is pruned; raises ConfigError if the settings contradict each other."""
        return prune_terms(self.rows, self.memory, self.stream.batch)

    @property
    def may_sum(self) -> bool:
        """Whether workers may sum dense gradients among themselves."""
        return self.curve is None or self.dense.unencrypted_reduce


def prune_terms(rows: RowConfig, memory: MemoryConfig, batch: int) -> PruneTerms:
    """What is pruned; raises ConfigError if settings contradict each other."""
    chunks = rows.chunks
    if not chunks and (memory.budget_mb or memory.prune_share or memory.columns < 1.0):
        raise ConfigError(
            "chunks or columns of rows are to be pruned, and rows are not divided into chunks; expected rows.chunks to "
            "be 1, 2, 4 or 8; set it, or set memory.budget_mb and memory.prune_share to 0 and memory.columns to 1"
        )
    check_columns(rows, memory)
    budget = int(memory.budget_mb * (1 << 20) / rows.chunk_bytes())
    least = chunks * batch
    if memory.budget_mb and budget < least:
        raise ConfigError(
            f"memory.budget_mb = {memory.budget_mb:g} has room for {budget} chunks, and a batch has {batch} samples; "
            f"expected {least * rows.chunk_bytes() / (1 << 20):.3g} at least, for a row of {chunks} chunks a sample; "
            "raise it, or lower stream.batch"
        )
    return PruneTerms(
        chunks=chunks,
        width=rows.dim // max(1, chunks),
        columns=memory.columns,
        budget=budget,
        share=memory.prune_share,
        every_steps=memory.prune_steps,
        half_life_steps=rows.half_life_steps,
        spare=memory.prune_spare,
        enforce=memory.prune_enforce,
        profile=profile_of(memory.prune_shape, chunks),
    )


def check_columns(rows: RowConfig, memory: MemoryConfig) -> None:
    """Raises ConfigError if columns are to be dropped of rows that do not tell which ones."""
    if memory.columns < 1.0 and rows.optimizer != "adagrad":
        raise ConfigError(
            f"memory.columns is {memory.columns:g} and rows.optimizer is {rows.optimizer!r}; expected 'adagrad', whose "
            "accumulators tell which columns matter least; set rows.optimizer to it, or memory.columns to 1"
        )


def check_replicas(rows: RowConfig, policy: str, has_hot_set: bool) -> None:
    """Raises ConfigError for a policy that replicates rows which can be pruned."""
    if has_hot_set and rows.chunks:
        raise ConfigError(
            f"policy {policy!r} replicates rows, and rows.chunks is {rows.chunks}; expected a policy without replicas "
            "if rows can be pruned; choose another policy, or set rows.chunks to 0"
        )


def check_job(job: DispatchJob, needs: Needs) -> None:
    """Raises ConfigError, before anything starts, if settings contradict each other. needs: of the policy."""
    dispatch = job.dispatch
    dispatch.check_parking()
    check_room(
        cache_rows=dispatch.cache_rows,
        batch=job.stream.batch,
        workers=dispatch.workers,
        fields=job.schema.fields,
        shares=dispatch.share_bounds if needs.elastic else None,
        hot_share=needs.hot_share,
    )
    job.memory.check_expiry(dispatch.lookahead)
    job.quality.places(job.schema)
    job.prune_terms()
    check_replicas(job.rows, dispatch.policy, has_hot_set=needs.hot_share > 0)
    check_reduce(job.dense.reduce, dispatch.policy, has_hot_set=needs.ring)
    if dispatch.workers > 1 and not job.may_sum and needs_ring(job.dense.reduce, needs.ring):
        raise unencrypted(dispatch.workers)

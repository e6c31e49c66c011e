"""What the dispatcher works on: everything it needs from files and the environment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dispatch.config import DispatchConfig
from dispatch.dense import Reduce, check_reduce, needs_ring
from dispatch.placement.capacity.room import check_room
from dispatch.protocol import unencrypted
from infra.base.agreement import Agreement
from infra.base.wire import Curve
from ingest.config import StreamConfig
from ingest.schema import Schema
from ingest.streams.position import Position
from ps.config import CheckpointConfig, RowConfig


@dataclass(frozen=True)
class Golden:
    """A run that is replayed."""

    folder: Path
    last_step: int | None = None
    """None: the newest"""


@dataclass(frozen=True)
class DenseJob:
    """What the dispatcher must know of the dense weights."""

    bytes: int = 0
    """a worker with samples in a step pulls and pushes as many; 0: that moves none"""
    state_copies: int = 0
    """of their size that their optimizer keeps beside them"""
    reduce: Reduce = "auto"
    """how their gradients are summed"""
    unencrypted_reduce: bool = False
    """whether workers may sum them among themselves although keys are on"""


@dataclass(frozen=True)
class GateRule:
    """How far a snapshot may be from the served one; settings of serving, where they are explained."""

    logloss: float = 0.15
    calibration: float = 0.25
    changed_share: float = 0.5
    samples: int = 4096


@dataclass(frozen=True)
class Publishing:
    """How often a snapshot is published while somebody serves the model, and which one is held back."""

    seconds: float = 1.0
    gate: GateRule = field(default_factory=GateRule)


@dataclass(frozen=True)
class DispatchJob:
    """One run of the dispatcher."""

    run: str
    seed: int
    folder: Path
    """of the run; its journal is kept there"""
    stream: StreamConfig
    dispatch: DispatchConfig
    schema: Schema
    rows: RowConfig
    """what rows hold: it decides how many bytes a move takes"""
    shards: int
    """that offer themselves to the dispatcher"""
    dense: DenseJob = field(default_factory=DenseJob)
    storage: str = ""
    """where checkpoints are: a folder or a URL"""
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    publishing: Publishing = field(default_factory=Publishing)
    samples: int | None = None
    """stop after exactly so many samples"""
    mark_at: int | None = None
    """also measure quality and speed over what comes after so many samples"""
    stop_at_end: bool = False
    """stop where the stream ends now, instead of waiting for more"""
    curve: Curve | None = None
    agreement: Agreement = field(default_factory=Agreement)
    """what it must have in common with workers and shards"""
    start: Mapping[int, Position] = field(default_factory=dict)
    """where to begin; empty: at the first record of every partition"""
    write_behind: float = 0.0
    """owned rows that a worker pushes ahead of the next checkpoint, at most, as a share of the rows it pulls in a
    step"""
    golden: Golden | None = None
    """a run whose steps are trained again, and nothing else"""

    @property
    def topic(self) -> str:
        """Which stream is read."""
        return f"{self.stream.source}:{self.stream.topic}"

    @property
    def row_bytes(self) -> int:
        """Of a row with its state."""
        return self.rows.shape().total * np.dtype(self.rows.float_dtype).itemsize

    @property
    def may_sum(self) -> bool:
        """Whether workers may sum dense gradients among themselves."""
        return self.curve is None or self.dense.unencrypted_reduce


def check_job(job: DispatchJob, is_elastic: bool, hot_share: float) -> None:
    """Raises before anything starts if the settings do not go together."""
    dispatch = job.dispatch
    has_hot_set = hot_share > 0
    dispatch.check_parking()
    check_room(
        cache_rows=dispatch.cache_rows,
        batch=job.stream.batch,
        workers=dispatch.workers,
        fields=job.schema.fields,
        shares=dispatch.share_bounds if is_elastic else None,
        hot_share=hot_share,
    )
    check_reduce(job.dense.reduce, dispatch.policy, has_hot_set)
    if dispatch.workers > 1 and not job.may_sum and needs_ring(job.dense.reduce, has_hot_set):
        raise unencrypted(dispatch.workers)

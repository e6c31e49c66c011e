"""The job of one worker process: everything that was read from files, arguments and the environment."""

from dataclasses import dataclass, field
from pathlib import Path

from infra.base.agreement import Agreement
from infra.base.link import Link
from infra.base.wire import Curve
from ingest.schema import ListPool
from ps.config import RowConfig
from trainer.config import ModelConfig, TrainerConfig


@dataclass(frozen=True)
class WorkerJob:
    """One worker of one run."""

    name: str
    """Name of the worker, unique in its run."""
    run: str
    seed: int
    folder: Path
    """The run's folder, where the dense weights are saved."""
    dispatcher_endpoint: str
    rows: RowConfig
    model: ModelConfig
    trainer: TrainerConfig
    fields: int
    """Keys per sample, with those of crosses."""
    dense: int
    """Dense inputs per sample."""
    batch: int | None = None
    """Samples of a full batch, over all workers; gradients of rows are in units of its mean loss. None: every batch
    counts as full.
    """
    crosses: int = 0
    """Keys of crosses, the last ones of a sample."""
    pools: tuple[ListPool, ...] = ()
    """The keys of each pooled table."""
    labels: int = 1
    """Labels of a sample."""
    link: Link = field(default_factory=Link)
    """Its network link; not shaped by default."""
    ends_itself: bool = False
    """Whether the process exits, to be restarted, if it cannot abort a generation in time."""
    is_supervised: bool = False
    """Whether a supervisor would only restart it if it gave up because another process has its name."""
    waits_until_admitted: bool = False
    """Whether it is ready only once the dispatcher has admitted it. A worker started by hand may be the second of its
    name, and must not register in the run's folder before that.
    """
    curve: Curve | None = None
    agreement: Agreement = field(default_factory=Agreement)
    """The settings that it must share with the dispatcher and the shards."""

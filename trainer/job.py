"""What one worker process is given: everything that files, arguments and the environment had to say."""

from dataclasses import dataclass, field
from pathlib import Path

from infra.base.agreement import Agreement
from infra.base.link import Link
from infra.base.wire import Curve
from ps.config import RowConfig
from trainer.config import ModelConfig, TrainerConfig


@dataclass(frozen=True)
class WorkerJob:
    """One worker of one run."""

    name: str
    """unique in its run"""
    run: str
    seed: int
    folder: Path
    """the run's folder, where the dense weights are saved"""
    dispatcher_endpoint: str
    rows: RowConfig
    model: ModelConfig
    trainer: TrainerConfig
    fields: int
    """keys a sample"""
    dense: int
    """dense inputs a sample"""
    link: Link = field(default_factory=Link)
    """its network link; not shaped by default"""
    ends_itself: bool = False
    """whether the process ends, to be started anew, if it cannot abort a generation in time"""
    is_supervised: bool = False
    """whether it would only be started again if it gave up because another process has its name"""
    waits_until_admitted: bool = False
    """whether it is ready only once the dispatcher has admitted it: one that was started by hand may be the second of
    its name, and must not say in the run's folder that it is the one"""
    curve: Curve | None = None
    agreement: Agreement = field(default_factory=Agreement)
    """what it must have in common with the dispatcher and the shards"""

"""Whether anybody works in a run's folder: shown by locks, which the kernel releases however their holders end."""

from pathlib import Path

from dispatch.journal.history import JOURNAL
from dispatch.journal.log import LOCK
from infra.base.files import is_locked

RUN_LOCK = "run.lock"
"""Name of the file in the run's folder; locked while the run is supervised."""


def is_under_way(folder: Path) -> bool:
    """Whether a supervisor or a dispatcher works in this folder."""
    return any(is_locked(lock) for lock in (folder / RUN_LOCK, folder / JOURNAL / LOCK))

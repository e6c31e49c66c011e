"""All checks of a run's folder that only read it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dispatch.journal.occupied import RUN_LOCK
from infra.base.errors import ConfigError
from infra.base.faults import FIRED, read_fired
from infra.base.files import naming, try_lock
from infra.run.settings import read_stored
from infra.verify.checkpoints import check_checkpoints, check_newest_checkpoint, check_unreferenced
from infra.verify.events import check_events, check_letters
from infra.verify.finding import Finding, NotChecked, check
from infra.verify.journal import check_numbers, check_ranges
from infra.verify.last_steps import check_last_steps
from infra.verify.leftovers import check_processes, check_temporary

CHECKS = (
    check_ranges,
    check_numbers,
    check_events,
    check_letters,
    check_processes,
    check_temporary,
    check_checkpoints,
    check_newest_checkpoint,
    check_unreferenced,
    check_last_steps,
)


def verify_folder(folder: Path) -> list[Finding]:
    """The findings of every check; the run must not be under way."""
    read_stored(folder)
    return [each(folder) for each in (*CHECKS, check_faults)]


@check("faults fired")
def check_faults(folder: Path) -> str:
    """Which faults were injected into the run."""
    if not (folder / FIRED).exists():
        raise NotChecked("no fault was set")
    return ", ".join(f"{fired.fault} in step {fired.step}" for fired in read_fired(folder))


@contextmanager
def holding_run_idle(folder: Path) -> Iterator[None]:
    """Inside, nobody can start or resume the run; raises ConfigError if it is under way."""
    path = folder / RUN_LOCK
    with naming(path):
        file = try_lock(path, os.O_RDONLY) if path.exists() else -1
    if file is None:
        raise ConfigError(
            f"the run in {folder} is under way; expected one that is over or was interrupted; stop it first"
        )
    try:
        yield
    finally:
        if file >= 0:
            os.close(file)

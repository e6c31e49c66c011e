"""A run's folder belongs to one run: a second one is refused before it has changed anything there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.errors import ConfigError, ProcessFailed
from infra.files import describe_room, naming, try_lock
from ingest.batches.manifest import read_manifests
from trainer.config import DENSE_FILE

LOCK = "run.lock"
"""held as long as the run is supervised"""
MANIFESTS = "manifests.log"


@contextmanager
def claim(folder: Path) -> Iterator[None]:
    """Makes the folder if need be and keeps it for this run; raises ConfigError if it is another one's."""
    check_unused(folder)
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
        file = try_lock(folder / LOCK)
    if file is None:
        raise _under_way(folder)
    try:
        yield
    except ProcessFailed as error:
        # A process whose log is on a full disk could not say why it failed.
        if room := describe_room(folder):
            raise ProcessFailed(f"{error}\n{room}") from error
        raise
    finally:
        os.close(file)


def check_unused(folder: Path) -> None:
    """Raises ConfigError if a run is under way in the folder or has left steps there; changes nothing."""
    for name in (LOCK, MANIFESTS):
        if _is_locked(folder / name):
            raise _under_way(folder)
    steps = read_manifests(folder / MANIFESTS)
    left = f"{len(steps)} steps of run {steps[-1].run!r}" if steps else f"the weights of a run, {DENSE_FILE}"
    if steps or (folder / DENSE_FILE).exists():
        raise ConfigError(
            f"folder {folder} already holds {left}; expected one without, since a run without a checkpoint cannot be "
            "continued; give another folder with --folder or FRESHET_FOLDER"
        )


def _is_locked(path: Path) -> bool:
    with naming(path):
        try:
            file = try_lock(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        if file is not None:
            os.close(file)
    return file is None


def _under_way(folder: Path) -> ConfigError:
    return ConfigError(
        f"a run is under way in folder {folder}; expected a folder of its own for every run; stop that run, or give "
        "another folder with --folder or FRESHET_FOLDER"
    )

"""A run's folder belongs to one run: another one is refused before it has changed anything there.

A run that was stopped or interrupted goes on in its folder; one that is under way or over is left alone.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dispatch.journal.history import JOURNAL, check_unfinished, read_cuts, read_history
from dispatch.journal.occupied import RUN_LOCK, is_under_way
from infra.errors import ConfigError, ProcessFailed
from infra.files import describe_room, naming, try_lock


@contextmanager
def claim(folder: Path) -> Iterator[None]:
    """Makes the folder if need be and keeps it for this run; raises ConfigError if none can be started there."""
    check_free(folder)
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
        file = try_lock(folder / RUN_LOCK)
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


def check_free(folder: Path) -> None:
    """Raises ConfigError if a run is under way in the folder or is over; changes nothing."""
    if is_under_way(folder):
        raise _under_way(folder)
    check_unfinished(read_history(folder / JOURNAL), folder)


def may_go_on(folder: Path) -> bool:
    """Whether the run in the folder has begun and is not over."""
    history = read_cuts(folder / JOURNAL)
    return history.begun is not None and history.ended is None


def _under_way(folder: Path) -> ConfigError:
    return ConfigError(
        f"a run is under way in folder {folder}; expected a folder of its own for every run; stop that run, or give "
        "another folder with --folder or FRESHET_FOLDER"
    )

"""A run's folder: which one a name refers to, and that it belongs to one run.

A run that was stopped or interrupted is resumed in its folder; one that is under way or has ended is left alone, and
another one is refused before it has changed anything there.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from api.runs.places import find_folders, find_runs
from dispatch.journal.history import JOURNAL, check_unfinished, read_checkpoints, read_history
from dispatch.journal.occupied import RUN_LOCK, is_under_way
from infra.base.errors import ConfigError, ProcessFailed
from infra.base.files import describe_room, naming, try_lock
from infra.base.run_folder import ENDPOINTS, is_run

RUNS = Path("runs")
"""Folder in which runs are looked up by name."""


def is_path(value: str) -> bool:
    """Whether a value that names a run is the path of its folder, existing or not."""
    return os.sep in value or value in (os.curdir, os.pardir)


def as_path(folder: Path) -> str:
    """A folder in the form of --run that cannot be mistaken for a name."""
    return str(folder) if is_path(str(folder)) else f"{os.curdir}{os.sep}{folder}"


def find_folder(value: str, base: Path = Path()) -> Path:
    """The folder that --run names: that path, or a run's in ``runs``; raises ConfigError, which lists what is there."""
    folder = named_folder(value, base)
    if folder is not None:
        return folder
    there = ", ".join(sorted(folder.name for folder in find_folders(base / RUNS)))
    raise ConfigError(
        f"there is no run {value!r} in {RUNS}, which has {there or 'none'}; expected the name of a run there, or the "
        "path of a run's folder; correct --run"
    )


def named_folder(value: str, base: Path = Path()) -> Path | None:
    """The same; None if it is neither a path nor the name of an existing run.

    A run can be named by its folder in ``runs``, and by the name with which it was started.
    """
    if is_path(value):
        return base / value
    if _holds_runs(folder := base / RUNS / value):
        return folder
    if (place := find_runs(base / RUNS).get(value)) is not None:
        return place.folder
    return base / value if _holds_runs(base / value) else None


def fitting_folders(fits: Callable[[Path], bool] = is_under_way) -> list[Path]:
    """The folders of runs in ``runs`` that fit, or of all if none does: candidates for a command that names none.

    Folders of agents if there are no runs.
    """
    runs = [place.folder for place in find_runs(RUNS).values()] or find_folders(RUNS)
    return [folder for folder in runs if fits(folder)] or runs


def _holds_runs(folder: Path) -> bool:
    """Whether a folder is that of a run, including processes started by hand, or of several."""
    return is_run(folder) or (folder / ENDPOINTS).is_dir() or bool(find_folders(folder))


@contextmanager
def claim(folder: Path) -> Iterator[None]:
    """Creates the folder if needed and keeps it for this run; raises ConfigError if none can be started there."""
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
    """Raises ConfigError if a run is under way in the folder or has ended; changes nothing."""
    if is_under_way(folder):
        raise _under_way(folder)
    check_unfinished(read_history(folder / JOURNAL), folder)


def may_go_on(folder: Path) -> bool:
    """Whether the run in the folder has begun and not ended."""
    history = read_checkpoints(folder / JOURNAL)
    return history.begun is not None and history.ended is None


def _under_way(folder: Path) -> ConfigError:
    return ConfigError(
        f"a run is under way in folder {folder}; expected a folder of its own for every run; stop that run, or give "
        "another one with --run or FRESHET_FOLDER"
    )


def checkpoint_place(folder: Path, url: str = "") -> str:
    """Where a run stores checkpoints: at the URL of its settings, or in its folder (``cuts`` in earlier releases)."""
    old = folder / "cuts"
    return url or str(old if old.is_dir() else folder / "checkpoints")

"""Which database a process uses, and how commands that make tokens for it find that out."""

from pathlib import Path

from infra.base.process import write_whole
from infra.base.run_folder import ENDPOINTS, is_run, read_line


def database_url(given: str | None, runs: Path) -> str:
    """Returns the given URL; by default, that of a file beside a run's folder, or in the folder of several runs."""
    home = runs.absolute().parent if is_run(runs) else runs.absolute()
    return given or f"sqlite:///{home / 'freshet.db'}"


def write_database(folder: Path, process: str, url: str) -> None:
    """Writes the URL for commands that make tokens for this process; the counterpart of ``read_database``."""
    (folder / ENDPOINTS).mkdir(parents=True, exist_ok=True)
    write_whole(folder / ENDPOINTS / f"{process}.database", url, is_private=True)  # it may contain a password


def read_database(folder: Path, process: str) -> str | None:
    """Returns the URL of a process's database; None if it has written none, or this user may not read it."""
    return read_line(folder / ENDPOINTS / f"{process}.database")

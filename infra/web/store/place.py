"""Which database a process uses, and how commands that make tokens for it find out."""

from pathlib import Path

from infra.base.process import write_whole
from infra.base.run_folder import ENDPOINTS, is_run, read_line


def database_url(given: str | None, runs: Path) -> str:
    """As given, or a file beside the folder of a run, or in the folder of several."""
    home = runs.absolute().parent if is_run(runs) else runs.absolute()
    return given or f"sqlite:///{home / 'freshet.db'}"


def write_database(folder: Path, process: str, url: str) -> None:
    """For commands that make tokens for this process; the counterpart of ``read_database``."""
    (folder / ENDPOINTS).mkdir(parents=True, exist_ok=True)
    write_whole(folder / ENDPOINTS / f"{process}.database", url, is_private=True)  # it may have a password


def read_database(folder: Path, process: str) -> str | None:
    """The URL of the database that a process has told; None: it has told none, or it is not for this user."""
    return read_line(folder / ENDPOINTS / f"{process}.database")

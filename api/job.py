"""What the API process is given."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import SecretStr

from api.config import ApiConfig
from api.runs.places import ENDPOINTS, is_run
from infra.base.process import write_whole


@dataclass(frozen=True)
class ApiJob:
    """One control plane."""

    config: ApiConfig
    runs: Path
    """folder of a run, or of several"""
    database: str
    """URL"""
    kafka_secrets: Mapping[str, SecretStr] = field(default_factory=dict)
    """settings of Kafka that runs do not store, for events that are handed in"""
    folder: Path | None = None
    """where its address and its database are written; None: nowhere"""


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
    try:
        return (folder / ENDPOINTS / f"{process}.database").read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def token_command(folder: Path | None) -> str:
    """What makes a token for the process that writes its address to a folder; the scope is missing."""
    of_run = "" if folder is None else f" --run {shlex.quote(str(folder.absolute()))}"
    return f"freshet token create --name NAME{of_run}"

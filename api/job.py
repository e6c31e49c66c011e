"""What the API process is given."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import SecretStr

from api.config import ApiConfig
from api.runs.places import is_run


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


def database_url(given: str | None, runs: Path) -> str:
    """As given, or a file beside the folder of a run, or in the folder of several."""
    home = runs.absolute().parent if is_run(runs) else runs.absolute()
    return given or f"sqlite:///{home / 'freshet.db'}"

"""What the API process needs to start."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import SecretStr

from api.config import ApiConfig


@dataclass(frozen=True)
class ApiJob:
    """The job of one API process."""

    config: ApiConfig
    runs: Path
    """Folder of a run, or of several runs."""
    database: str
    """URL of the database."""
    kafka_secrets: Mapping[str, SecretStr] = field(default_factory=dict)
    """Secret settings of Kafka, which runs do not store; needed to write events that arrive over HTTP."""
    link_file: Path | None = None
    """Where to write the secret of a sign-in link at the start, for the supervisor to show; None: nowhere."""
    folder: Path | None = None
    """Folder in which its address and its database are recorded; None: they are not recorded."""

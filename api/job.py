"""What the API process is given."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import SecretStr

from api.config import ApiConfig


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

"""What the serving process is given."""

from collections.abc import Callable
from dataclasses import dataclass

from api.config import ApiConfig
from ingest.schema import Schema
from ingest.streams.source import Source
from serving.config import ServingConfig
from serving.copies import ModelSpec


@dataclass(frozen=True)
class ServingJob:
    """One server of a run's model."""

    config: ServingConfig
    limits: ApiConfig
    """sizes and durations of requests, and the certificate, are those of the API"""
    database: str
    """URL; it has the tokens"""
    storage: str
    """where the cuts are"""
    schema: Schema
    spec: ModelSpec
    open_source: Callable[[], Source] | None = None
    """opens the stream of the run, whose events may bring labels; needed where predictions are logged"""
    shares_port: bool = False
    """whether other servers listen on the port"""

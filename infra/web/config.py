"""How a process listens for HTTP and how much anyone may ask of it; the settings it is made from are elsewhere."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class WebConfig:
    """Made from sections of the settings, which check the values: ``ApiConfig.web`` and ``ServingConfig.web``."""

    section: str
    """of the settings that names host, port and rate"""
    usual_port: int
    """where none is named"""
    host: str
    port: int | None
    """0: any that is free; None: the usual one, or any where that is taken"""
    tls_certificate: Path | None
    """None: plain HTTP"""
    tls_key: Path | None
    """None: it is in the file of the certificate"""
    body_bytes: int
    """of the largest request body"""
    requests_per_second: float
    """of one token, or of one address without"""
    concurrency: int
    """requests under way at a time; event streams beside them"""
    receive_seconds: float
    """within which a request must have arrived, its body included"""

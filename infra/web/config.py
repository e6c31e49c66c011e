"""How a process listens for HTTP and how much clients may ask of it; the settings it is made from are elsewhere."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class WebConfig:
    """Made from sections of the settings, which check the values: ``ApiConfig.web`` and ``ServingConfig.web``."""

    section: str
    """Section of the settings that names host, port and rate."""
    usual_port: int
    """The port to use if the settings name none."""
    host: str
    port: int | None
    """The port; 0: any free port; None: the usual port, or any free one if that is taken."""
    tls_certificate: Path | None
    """File of the certificate; None for plain HTTP."""
    tls_key: Path | None
    """File of the key; None if it is in the certificate's file."""
    body_bytes: int
    """Size of the largest request body."""
    requests_per_second: float
    """Requests per second allowed for each token, or for each address without a token."""
    concurrency: int
    """Most requests under way at a time; event streams are counted separately."""
    receive_seconds: float
    """Time within which a whole request, with its body, must arrive."""

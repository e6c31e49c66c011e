"""Settings of the API process."""

from pathlib import Path

from pydantic import Field, model_validator

from infra.base.config import Section
from infra.web.config import WebConfig

USUAL_PORT = 8000


class ApiConfig(Section):
    """Where the control plane listens, what it knows, and how much anyone may ask of it."""

    host: str = "127.0.0.1"
    """address to listen on; 0.0.0.0 for every interface of the machine, which needs a token in the database"""
    port: int | None = Field(default=None, ge=0, le=65535)
    """port to listen on; 0 for any that is free; none for 8000, or any where that is taken"""
    runs: Path | None = None
    """folder of a run, or of several runs; None: the run's own"""
    database: str | None = None
    """URL of the database, as in postgresql://user:password@host/name; None: freshet.db beside the run's folder"""
    tls_certificate: Path | None = None
    """certificate chain (PEM) to serve HTTPS with; None: plain HTTP"""
    tls_key: Path | None = None
    """private key (PEM) of that certificate; None: it is in the same file"""
    body_bytes: int = Field(default=8 << 20, ge=1024)
    """of the largest request body"""
    requests_per_second: float = Field(default=200.0, gt=0, le=100_000)
    """of one token, or of one address without; those of ten seconds may come at once"""
    concurrency: int = Field(default=64, ge=1, le=10_000)
    """requests under way at a time, of one token at most as many as there is room left; event streams beside them"""
    receive_seconds: float = Field(default=10.0, gt=0, le=3600)
    """within which a request must have arrived, its body included"""

    @model_validator(mode="after")
    def _check_key(self) -> "ApiConfig":
        if self.tls_key is not None and self.tls_certificate is None:
            raise ValueError(
                "a key without a certificate; expected both; set api.tls_certificate, or unset api.tls_key"
            )
        return self

    @property
    def web(self) -> WebConfig:
        """What the HTTP server of the process is given."""
        return WebConfig(
            section="api",
            usual_port=USUAL_PORT,
            host=self.host,
            port=self.port,
            tls_certificate=self.tls_certificate,
            tls_key=self.tls_key,
            body_bytes=self.body_bytes,
            requests_per_second=self.requests_per_second,
            concurrency=self.concurrency,
            receive_seconds=self.receive_seconds,
        )

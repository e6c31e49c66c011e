"""Settings of the API process."""

from pathlib import Path

from pydantic import Field, model_validator

from infra.base.config import Section
from infra.web.config import WebConfig

USUAL_PORT = 8000


class ApiConfig(Section):
    """Where the control plane listens, which runs it serves, and the limits of requests."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for every interface of the machine, which needs a token in the database."""
    port: int | None = Field(default=None, ge=0, le=65535)
    """Port to listen on; 0 for any free port; not set: 8000, or any free port if that one is taken."""
    runs: Path | None = None
    """Folder of a run, or of several runs; not set: the run's own."""
    database: str | None = None
    """URL of the database, as in postgresql://user:password@host/name; not set: freshet.db next to the run's folder."""
    tls_certificate: Path | None = None
    """Certificate chain (PEM) to serve HTTPS with; not set: plain HTTP."""
    tls_key: Path | None = None
    """Private key (PEM) of that certificate; not set: it is in the same file."""
    plugins: bool = False
    """Whether a request may name a model, policy or source of another package, for a run to start or one under way: its
    code then runs here.
    """
    body_bytes: int = Field(default=8 << 20, ge=1024)
    """Size of the largest request body."""
    requests_per_second: float = Field(default=200.0, gt=0, le=100_000)
    """Requests per second of one token, or of one address without a token; ten seconds' worth may come in one burst."""
    concurrency: int = Field(default=64, ge=1, le=10_000)
    """Requests under way at a time; one token may use at most the room that is left. Event streams are counted
    separately.
    """
    receive_seconds: float = Field(default=10.0, gt=0, le=3600)
    """Time within which a request must have arrived, including its body."""

    @model_validator(mode="after")
    def _check_key(self) -> "ApiConfig":
        if self.tls_key is not None and self.tls_certificate is None:
            raise ValueError(
                "a key without a certificate; expected both; set api.tls_certificate, or unset api.tls_key"
            )
        return self

    @property
    def web(self) -> WebConfig:
        """The settings that the HTTP server of the process needs."""
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

"""Settings of the serving process, and how often a snapshot is published for it. Does not import torch."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from infra.base.config import Section
from infra.web.config import WebConfig

USUAL_PORT = 8100


class ServingConfig(Section):
    """Where predictions are served, how fresh the model is, and which snapshots are held back."""

    host: str = "127.0.0.1"
    """Address to listen on; any other than this machine's own needs a token in the database."""
    port: int | None = Field(default=None, ge=0, le=65535)
    """Port to listen on; 0 for any free port; not set: 8100, or any free port if that one is taken."""
    processes: int = Field(default=1, ge=1, le=64)
    """Number of processes that serve on this port."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device of the model and its rows."""
    row_dtype: Literal["float32", "float16"] = "float32"
    """Type of rows in memory; float16 halves their memory and rounds them."""
    threads: int = Field(default=1, ge=1, le=256)
    """Torch threads in each process."""
    batch_samples: int = Field(default=512, ge=1, le=65536)
    """Most samples that are computed in one batch."""
    request_samples: int = Field(default=4096, ge=1, le=65536)
    """Most samples in one request."""
    requests_per_second: float = Field(default=2000.0, gt=0, le=1_000_000)
    """Requests per second of one token, or of one address without a token; ten seconds' worth may come in one burst.
    Other limits are those of api.
    """
    publish_seconds: float = Field(default=1.0, gt=0)
    """Time between two snapshots of the model, while a server is connected."""
    gate_logloss: float = Field(default=0.15, ge=0)
    """A snapshot is held back if its logloss on the newest samples is worse than that of the served snapshot by more
    than this share of it.
    """
    gate_calibration: float = Field(default=0.25, ge=0)
    """A snapshot is held back if predicted clicks differ from clicks by more than this share of them, after allowing
    for chance.
    """
    gate_live_rows: float = Field(default=0.5, ge=0)
    """A snapshot is held back if the share of changed rows exceeds its moving average by more than this."""
    gate_samples: int = Field(default=4096, ge=1)
    """Number of newest samples that a verdict is based on, more if clicks are rare; with fewer, only non-finite values
    hold a snapshot back.
    """
    log_predictions: Path | None = None
    """Folder of logged predictions, to which later labels are joined; not set: predictions are not logged."""
    label_seconds: float = Field(default=3600.0, gt=0)
    """Time after which a label that has not arrived counts as missing."""

    def web(self, of_api: WebConfig) -> WebConfig:
        """The settings of the HTTP server; certificate, sizes and time limits are those of the API."""
        return replace(
            of_api,
            section="serving",
            usual_port=USUAL_PORT,
            host=self.host,
            port=self.port,
            requests_per_second=self.requests_per_second,
        )

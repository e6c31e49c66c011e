"""Settings of the serving process, and of how often a model is published for it. Free of torch."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from infra.base.config import Section
from infra.web.config import WebConfig

USUAL_PORT = 8100


class ServingConfig(Section):
    """Where predictions are served, how fresh the model is, and which model is not let out."""

    host: str = "127.0.0.1"
    """address to listen on; another than this machine's own needs a token in the database"""
    port: int | None = Field(default=None, ge=0, le=65535)
    """port to listen on; 0 for any that is free; none for 8100, or any where that is taken"""
    processes: int = Field(default=1, ge=1, le=64)
    """that serve on this port"""
    device: Literal["cpu", "cuda"] = "cpu"
    """where the model and its rows live"""
    row_dtype: Literal["float32", "float16"] = "float32"
    """of rows in memory; float16 halves their memory and rounds them"""
    threads: int = Field(default=1, ge=1, le=256)
    """of torch, in each process"""
    batch_samples: int = Field(default=512, ge=1, le=65536)
    """most samples that are answered together"""
    request_samples: int = Field(default=4096, ge=1, le=65536)
    """most samples of one request"""
    requests_per_second: float = Field(default=2000.0, gt=0, le=1_000_000)
    """of one token, or of one address without; those of ten seconds may come at once; other limits are those of api"""
    publish_seconds: float = Field(default=1.0, gt=0)
    """between two versions of the model, while somebody serves it"""
    gate_logloss: float = Field(default=0.15, ge=0)
    """a version is held back if its logloss on the newest samples is worse than that of the version being served by
    more than this share of it"""
    gate_calibration: float = Field(default=0.25, ge=0)
    """a version is held back if predicted clicks differ from clicks by more than this share of them, and chance"""
    gate_live_rows: float = Field(default=0.5, ge=0)
    """a version is held back if the share of rows that changed is so much larger than its moving average"""
    gate_samples: int = Field(default=4096, ge=1)
    """the most recent samples that a verdict looks at, more where clicks are rare; with fewer, only non-finite values
    hold a version back"""
    log_predictions: Path | None = None
    """folder of served predictions, to which labels that come later are joined; None: none are kept"""
    label_seconds: float = Field(default=3600.0, gt=0)
    """after which a label that has not come is counted as missing"""

    def web(self, of_api: WebConfig) -> WebConfig:
        """What the HTTP server of the process is given: its certificate, sizes and durations are those of the API."""
        return replace(
            of_api,
            section="serving",
            usual_port=USUAL_PORT,
            host=self.host,
            port=self.port,
            requests_per_second=self.requests_per_second,
        )

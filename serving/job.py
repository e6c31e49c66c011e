"""What the serving process is given."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from infra.base.config import PRIVATE
from infra.base.run_folder import FEED_WORD, dispatcher_endpoint
from infra.base.wire import Curve
from infra.web.config import WebConfig
from ingest.schema import Schema
from ingest.streams.source import Source
from serving.config import ServingConfig
from serving.copies import ModelSpec


@dataclass(frozen=True)
class ServingJob:
    """One server of a run's model."""

    config: ServingConfig
    web: WebConfig
    """where it listens, and what it allows; ``ServingConfig.web`` makes it"""
    database: str
    """URL; it has the tokens"""
    storage: str
    """where the checkpoints are"""
    schema: Schema
    spec: ModelSpec
    open_source: Callable[[], Source] | None = None
    """opens the stream of the run, whose events may bring labels; needed where predictions are logged"""
    shares_port: bool = False
    """whether other servers listen on the port"""
    name: str = "serve"
    """of this process"""
    folder: Path | None = None
    """of the run; where its dispatcher is, is read there; None: nothing is heard from it, and the storage is polled"""
    feed_endpoint: str = ""
    """of the dispatcher, where that is known beforehand: neither private nor at any free port"""
    curve: Curve | None = None
    """keys for connections to the run; None: they are not encrypted"""

    def dispatcher(self) -> str | None:
        """Where the dispatcher answers now; None: it is not there."""
        if self.feed_endpoint not in ("", PRIVATE) and not self.feed_endpoint.endswith(":*"):
            return self.feed_endpoint
        return None if self.folder is None else dispatcher_endpoint(self.folder, FEED_WORD)

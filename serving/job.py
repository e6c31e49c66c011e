"""What the serving process needs to start."""

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
    """The job of one server of a run's model."""

    config: ServingConfig
    web: WebConfig
    """Address and limits of the HTTP server; made by ``ServingConfig.web``."""
    database: str
    """URL of the database with the tokens."""
    storage: str
    """URL of the checkpoints."""
    schema: Schema
    spec: ModelSpec
    open_source: Callable[[], Source] | None = None
    """Opens the stream of the run, whose events may contain labels; needed if predictions are logged."""
    shares_port: bool = False
    """Whether other servers listen on the same port."""
    name: str = "serve"
    """Name of this process."""
    folder: Path | None = None
    """Folder of the run, in which the dispatcher's endpoint is found; None: the storage is polled instead."""
    feed_endpoint: str = ""
    """Endpoint of the dispatcher, if it is known beforehand: not private, and with a fixed port."""
    curve: Curve | None = None
    """Keys for connections to the run; None: they are not encrypted."""

    def dispatcher(self) -> str | None:
        """The dispatcher's present endpoint; None if it has none."""
        if self.feed_endpoint not in ("", PRIVATE) and not self.feed_endpoint.endswith(":*"):
            return self.feed_endpoint
        return None if self.folder is None else dispatcher_endpoint(self.folder, FEED_WORD)

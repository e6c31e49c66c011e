"""A real server of predictions in this process, on a database of its own."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

from prometheus_client import CollectorRegistry

from api.config import ApiConfig
from infra.base.process import Stop
from infra.base.telemetry import Meter
from infra.web.store.rows import SCOPES
from ingest.log.embedded import LogReader
from serving.config import ServingConfig
from serving.job import ServingJob
from serving.main import run_serving
from tests.api.serving import WAIT_SECONDS, Served, new_token, until
from tests.serving.trained import SCHEMA, Trained


@contextmanager
def serving(
    run: Trained, is_ready: bool = True, shares: int = 0, log: Path | None = None, **settings: Any
) -> Iterator[Served]:
    """Serves a run's checkpoints; shares: the port of another server; settings: of serving, or limits of the API.

    log: the embedded log that the run's events come from.
    """
    limits = {name: settings.pop(name) for name in list(settings) if name in ApiConfig.model_fields and name != "port"}
    config = ServingConfig.model_validate({"port": shares, "requests_per_second": 10_000.0, **settings, **_own(limits)})
    database = f"sqlite:///{run.folder.parent / 'freshet.db'}"
    token = new_token(database, SCOPES)
    given = config, config.web(ApiConfig(**limits).web), database, str(run.folder), SCHEMA, run.spec
    source = None if log is None else partial(LogReader, log, "clicks")
    job = ServingJob(*given, open_source=source, shares_port=shares > 0)
    stop, ready = Stop(), Queue[str]()
    thread = threading.Thread(target=run_serving, args=(job, stop, ready.put, Meter(CollectorRegistry())))
    thread.start()
    try:
        served = Served(ready.get(timeout=WAIT_SECONDS), token, database)
        if is_ready:
            until(lambda: served.get("/readyz").status == 200)
        yield served
    finally:
        stop.request("test over")
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()


def _own(limits: dict[str, Any]) -> dict[str, Any]:
    """Limits that serving has itself."""
    return {name: limits.pop(name) for name in list(limits) if name in ("requests_per_second", "host")}

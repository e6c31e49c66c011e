"""Logs and metrics of one process.

Logs are structlog events with run and process on each, as lines for people or as JSON lines; a value whose name looks
like a secret is masked. Metrics are Prometheus metrics, created at first use and served by every process.
"""

import logging
import os
import re
import sys
import time
from collections import Counter as Tallied
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, TextIO

import structlog
from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    start_http_server,
)
from pydantic import BaseModel, SecretBytes, SecretStr

from infra.base.errors import ConfigError
from infra.base.files import text_log
from infra.base.metrics.catalogue import BY_NAME, PREFIX

MASK = "********"
SECRET_NAME = re.compile(r"secret|password|passwd|passphrase|token|credential|private|api_?key", re.IGNORECASE)
SECRET_IN_URL = re.compile(r"(?<=://)([^/@:\s]*):([^@\s]+)@")
SECRET_IN_QUERY = re.compile(rf"(?<=[?&])([^=&\s]*(?:{SECRET_NAME.pattern})[^=&\s]*)=[^&\s]+", re.IGNORECASE)
SECONDS_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

LogFormat = Literal["console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


@cache
def code_version() -> str:
    """The version of Freshet, as installed; a checkout that is run without being installed has none.

    It is looked up once: that reads files, for 3 ms of a processor.
    """
    try:
        return version("freshet")
    except PackageNotFoundError:
        return "unknown"


# ── logs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
def configure_logging(
    process: str, run: str, form: LogFormat = "console", level: LogLevel = "info", path: Path | None = None
) -> TextIO:
    """Sends every later event to stderr, or to the end of a file, with run and process on it; returns that stream."""
    stream = sys.stderr if path is None else text_log(path)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _bind(run=run, process=process),
            _masked,
            *_renderers(form, stream),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    return stream


def _bind(**names: str) -> structlog.typing.Processor:
    """Adds names to every event; a context variable would not reach events of other threads."""

    def bound(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return {**names, **event}

    return bound


def _masked(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return describe(event)


def _renderers(form: LogFormat, stream: TextIO) -> list[structlog.typing.Processor]:
    if form == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    plain = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=_takes_colors(stream), exception_formatter=plain, pad_event_to=0)]


def _takes_colors(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in ("dumb", "unknown")


def describe(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same values with every secret masked, for logs and files; secrets that are not set are not masked."""
    return {name: MASK if value and _is_secret(name) else _described(value) for name, value in settings.items()}


def describe_text(text: str) -> str:
    """The same text with passwords in URLs masked."""
    return SECRET_IN_QUERY.sub(rf"\1={MASK}", SECRET_IN_URL.sub(rf"\1:{MASK}@", text))


def _is_secret(name: Any) -> bool:
    return isinstance(name, str) and SECRET_NAME.search(name) is not None


def _described(value: Any) -> Any:
    match value:
        case SecretStr() | SecretBytes():
            return MASK if value.get_secret_value() else ""
        case BaseModel():
            return describe(value.model_dump())
        case Mapping():
            return describe(value)
        case list() | tuple() if type(value) in (list, tuple):
            return [_described(item) for item in value]
        case str():
            return describe_text(value)
    return value


# ── metrics ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def start_metrics(port: int = 0, host: str = "127.0.0.1", registry: CollectorRegistry = REGISTRY) -> int:
    """Serves ``/metrics`` from a daemon thread for the rest of the process; returns the real port (0: a free one)."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # one more series for each counter, which nobody asks for
    try:
        server, _thread = start_http_server(port, host, registry)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"cannot serve metrics on {host}:{port}: {error}; expected an address of this machine and a free port; "
            "choose another, or 0 for any"
        ) from error
    return int(server.server_port)


class Meter:
    """Counters, gauges and timers of one process, made at first use as ``infra.base.metrics.catalogue`` describes them.

    ``count("steps")`` is ``freshet_steps_total``. A name that is not in the catalogue, or is of another kind or has
    other labels there, raises ValueError.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.registry = registry
        self._made: dict[str, Any] = {}
        self._totals: dict[tuple[str, ...], float] = {}

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Adds to ``freshet_NAME_total``."""
        self._series(Counter, f"{name}_total", labels).inc(amount)

    def total(self, name: str, value: float, **labels: str) -> None:
        """Sets ``freshet_NAME_total`` to a value that is counted elsewhere; if that went down, it starts again."""
        counter = self._series(Counter, f"{name}_total", labels)
        place = (name, *labels.values())
        if value < self._totals.get(place, 0.0):
            counter.reset()
            self._totals[place] = 0.0
        counter.inc(value - self._totals.get(place, 0.0))
        self._totals[place] = value

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Sets ``freshet_NAME``."""
        self._series(Gauge, name, labels).set(value)

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        """Adds one duration to the histogram ``freshet_NAME_seconds``."""
        self._series(Histogram, f"{name}_seconds", labels).observe(seconds)

    def _series(self, kind: type[Any], name: str, labels: Mapping[str, str]) -> Any:
        metric = self._made.get(name)
        if metric is None:
            metric = self._made[name] = self._make(kind, f"{PREFIX}{name}", tuple(labels))
        return metric.labels(**labels) if labels else metric

    def _make(self, kind: type[Any], name: str, labels: tuple[str, ...]) -> Any:
        known = BY_NAME.get(name)
        if known is None or (known.kind, set(known.labels)) != (kind.__name__.lower(), set(labels)):
            raise ValueError(
                f"metric {name} is used as a {kind.__name__.lower()} by {labels}; expected {known or 'another name'}; "
                "enter it in infra/base/metrics/catalogue.py"
            )
        options = {"buckets": SECONDS_BUCKETS} if kind is Histogram else {}
        return kind(name, known.text, known.labels, registry=self.registry, **options)


class Refusals:
    """Messages that a server refused: counted by type, also in ``freshet_refused_messages_total``, and logged.

    Anyone may send any number of them, so at most one in LOG_SECONDS is logged, with how many were not.
    """

    LOG_SECONDS = 5.0
    UNREADABLE = "unreadable"
    """The type of a message that could not be read."""

    def __init__(self, meter: Meter | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.by_type: Tallied[str] = Tallied()
        self._meter = meter
        self._clock = clock
        self._log_at = clock()
        self._not_logged = 0

    @property
    def total(self) -> int:
        return self.by_type.total()

    def add(self, message: str, sender: bytes, reason: str) -> None:
        """Notes one message by its type."""
        self.by_type[message] += 1
        if self._meter is not None:
            self._meter.count("refused_messages", message=message)
        if self._clock() < self._log_at:
            self._not_logged += 1
            return
        event = "a message was refused"
        structlog.get_logger().warning(
            event, message=message, sender=repr(sender), reason=reason, not_logged=self._not_logged
        )
        self._log_at = self._clock() + self.LOG_SECONDS
        self._not_logged = 0


@dataclass
class RepeatedKind:
    """One kind of recurring event."""

    log_at: float
    """Earliest time of the next line, by the clock."""
    pause_seconds: float
    """Pause after the next line."""
    seen: float = 0.0
    count: int = 0
    """Number of events since the last line."""


class DoublingPauses:
    """When to log recurring events: at once, and then at intervals that double while they continue.

    Each kind of event has its own intervals, so that two alternating kinds do not fill the log either. A kind that has
    not been seen for a while is new again.
    """

    FIRST_SECONDS = 1.0
    LONGEST_SECONDS = 3600.0
    FORGOTTEN_SECONDS = 60.0
    """Time after which a kind that has not been seen is new again."""
    MOST_KINDS = 256

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kinds: dict[Hashable, RepeatedKind] = {}

    def count_if_due(self, kind: Hashable) -> int:
        """Notes an event; returns how many there were since the last line if it is time for another
        one, otherwise 0.
        """
        now = self._clock()
        repeated = self._kinds.pop(kind, None)
        if repeated is None or now - repeated.seen > self.FORGOTTEN_SECONDS:
            repeated = RepeatedKind(log_at=now, pause_seconds=self.FIRST_SECONDS)
        self._kinds[kind] = repeated
        while len(self._kinds) > self.MOST_KINDS:
            self._kinds.pop(next(iter(self._kinds)))
        repeated.seen = now
        repeated.count += 1
        if now < repeated.log_at:
            return 0
        count, repeated.count = repeated.count, 0
        repeated.log_at = now + repeated.pause_seconds
        repeated.pause_seconds = min(2 * repeated.pause_seconds, self.LONGEST_SECONDS)
        return count

"""Sources of other packages, by the name of an entry point or as ``module:Name``, and the sinks that belong to them.

    class Tape:
        def __init__(self, inputs: SourceInputs) -> None: ...
        ...  # the methods of ingest.streams.source.Source
        @classmethod
        def open_sink(cls, inputs: SourceInputs) -> Sink: ...  # optional

What a run computes after a crash follows from reading the same records at the same offsets again. So every answer is
checked, and before a run starts the source is read twice.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from infra.base.errors import ConfigError, FreshetError
from infra.base.plugins import SOURCES, describe_failure, find_plugin, load_plugin
from ingest.config import SOURCE_NAMES, StreamConfig
from ingest.errors import SinkError, SourceError
from ingest.streams.sink import Entry, Sink
from ingest.streams.source import Record, Source

KIND = "source"
METHODS = ("partitions", "span", "read", "offset_at", "commit", "close")
SINK_METHODS = ("write", "ends", "close")
TRIED_BYTES = 1 << 16
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class SourceInputs:
    """What a source or a sink is opened for."""

    topic: str
    """``stream.topic``."""
    folder: Path
    """``stream.folder``, for a source that reads files."""
    partitions: int
    """``stream.partitions``, for a sink that makes a topic."""


class PluggedSource:
    """Checks what an object of another package answers, and translates its errors."""

    def __init__(self, name: str, source: Any) -> None:
        self._name = name
        self._source = source

    @property
    def clock(self) -> str:
        clock: str = self._ask("clock", lambda: self._source.clock)
        return clock

    def partitions(self) -> list[int]:
        found = self._ask("partitions()", lambda: list(self._source.partitions()))
        if any(not isinstance(each, int) or each < 0 for each in found) or len(set(found)) < len(found):
            self._refuse(f"gives partitions {found}", "different numbers from 0 on")
        return found

    def span(self, partition: int) -> tuple[int, int]:
        found = self._ask(f"span({partition})", lambda: tuple(self._source.span(partition)))
        if len(found) != 2 or not all(isinstance(each, int) for each in found) or not 0 <= found[0] <= found[1]:
            self._refuse(f"gives {found} as the span of partition {partition}", "(first offset, offset after the last)")
        return found[0], found[1]

    def read(self, partition: int, offset: int, max_bytes: int) -> list[Record]:
        found = self._ask(f"read({partition}, {offset})", lambda: self._source.read(partition, offset, max_bytes))
        if not isinstance(found, list) or not all(isinstance(each, Record) for each in found):
            self._refuse(f"reads {type(found).__name__} from partition {partition}", "a list of freshet.Record")
        offsets = [offset - 1, *(each.offset for each in found)]
        if any(later <= earlier for earlier, later in pairwise(offsets)):
            self._refuse(f"reads offsets {offsets[1:9]} from {offset} on", "rising ones that are not below that")
        return found

    def offset_at(self, partition: int, time_ms: int) -> int:
        return int(self._ask(f"offset_at({partition})", lambda: self._source.offset_at(partition, time_ms)))

    def commit(self, offsets: Mapping[int, int]) -> None:
        self._ask("commit()", lambda: self._source.commit(offsets))

    def close(self) -> None:
        self._ask("close()", self._source.close)

    def _ask(self, what: str, call: Callable[[], Answer]) -> Answer:
        try:
            return call()
        except FreshetError:  # as SourceUnavailable, which asks for another attempt
            raise
        except Exception as error:  # whatever the object does
            raise SourceError(
                f"source {self._name!r} fails at {what}: {describe_failure(error)}; correct it"
            ) from error

    def _refuse(self, what: str, expected: str) -> NoReturn:
        raise SourceError(f"source {self._name!r} {what}; expected {expected}; correct it")


class PluggedSink:
    """Translates the errors of a sink of another package."""

    def __init__(self, name: str, sink: Any) -> None:
        self._name = name
        self._sink = sink

    @property
    def partitions(self) -> list[int]:
        return self._ask("partitions", lambda: list(self._sink.partitions))

    def write(self, entries: Mapping[int, Sequence[Entry]]) -> None:
        self._ask("write()", lambda: self._sink.write(entries))

    def ends(self) -> dict[int, int]:
        return self._ask("ends()", lambda: dict(self._sink.ends()))

    def close(self) -> None:
        self._ask("close()", self._sink.close)

    def _ask(self, what: str, call: Callable[[], Answer]) -> Answer:
        try:
            return call()
        except FreshetError:  # as SinkUnavailable, which asks for another attempt
            raise
        except Exception as error:  # whatever the object does
            raise SinkError(f"sink {self._name!r} fails at {what}: {describe_failure(error)}; correct it") from error


def open_plugged_source(stream: StreamConfig) -> Source:
    """The source that ``stream.source`` names; raises ConfigError if it cannot be opened."""
    return PluggedSource(stream.source, _opened(stream, "source", _load(stream), METHODS))


def open_plugged_sink(stream: StreamConfig) -> Sink:
    """The sink that belongs to the source; raises ConfigError if it has none, or it cannot be opened."""
    found = _load(stream)
    if not hasattr(found, "open_sink"):
        raise ConfigError(
            f"events cannot be written to source {stream.source!r}: it has no sink; expected a class with "
            "open_sink(cls, inputs); write its events where it reads them, or add that"
        )
    return PluggedSink(stream.source, _opened(stream, "sink", found.open_sink, SINK_METHODS))


def try_source(stream: StreamConfig) -> None:
    """Raises ConfigError or SourceError, before a run starts, for a source from which it could not be recovered."""
    with closing(open_plugged_source(stream)) as source:
        for partition in source.partitions():
            first, end = source.span(partition)
            records = source.read(partition, first, TRIED_BYTES) if first < end else []
            if first < end and not records:
                raise _unrepeatable(stream, f"has records {first} to {end - 1} in partition {partition} and reads none")
            if source.read(partition, first, TRIED_BYTES)[: len(records)] != records:
                raise _unrepeatable(stream, f"reads other records at offset {first} of partition {partition} each time")


def _unrepeatable(stream: StreamConfig, does: str) -> ConfigError:
    return ConfigError(
        f"source {stream.source!r} {does}; expected the same records whenever an offset is read, which recovery "
        "depends on; correct it"
    )


def _load(stream: StreamConfig) -> Any:
    found = load_plugin(KIND, find_plugin(KIND, SOURCES, stream.source, SOURCE_NAMES))
    missing = [name for name in METHODS if not callable(getattr(found, name, None))]
    if not isinstance(found, type) or missing:
        what = f"class {found.__name__} without {missing[0]}()" if isinstance(found, type) else type(found).__name__
        raise ConfigError(
            f"source {stream.source!r} is no source: it is a {what}; expected a class with {', '.join(METHODS)}; "
            "correct stream.source, or the class"
        )
    return found


def _opened(stream: StreamConfig, kind: str, call: Callable[[SourceInputs], Any], methods: Sequence[str]) -> Any:
    inputs = SourceInputs(stream.topic, stream.folder, stream.partitions)
    try:
        found = call(inputs)
    except FreshetError:  # as SourceUnavailable
        raise
    except Exception as error:  # whatever it does
        raise ConfigError(
            f"{kind} {stream.source!r} cannot be opened: {describe_failure(error)}; expected it to work with {inputs}; "
            "correct it"
        ) from error
    if missing := [name for name in methods if not callable(getattr(found, name, None))]:
        raise ConfigError(f"{kind} {stream.source!r} has no {missing[0]}(); expected {', '.join(methods)}; correct it")
    return found

"""Events that are handed in over HTTP: checked against the run's schema, then written where its dispatcher reads them.

What is accepted is durable. The embedded log has one writer: while ``freshet produce`` writes, events are refused here;
and it is given back after a few seconds without events.
"""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from itertools import count
from time import monotonic
from typing import Any, NamedTuple

import msgspec
from pydantic import SecretStr, ValidationError

from api.errors import BadRequest, Conflict, NotAvailable
from api.runs.places import Place
from infra.errors import FreshetError
from infra.process import Stop
from ingest.codec.decoder import Decoded, Decoder
from ingest.codec.nesting import is_too_deep
from ingest.codec.packed import PackedCodec, is_packed
from ingest.config import StreamConfig
from ingest.errors import LogBusy
from ingest.kafka.config import KafkaConfig
from ingest.opening import open_sink
from ingest.producing.encoder import Encoder
from ingest.schema import Schema, load_schema
from ingest.streams.position import Position
from ingest.streams.sink import Entry, Sink
from ingest.streams.source import Record

IDLE_SECONDS = 5.0
"""without events, after which a log is closed, for another writer to open"""
MOST_EVENTS = 10_000
"""of a request"""
MOST_REJECTS = 1000
"""of a request that are told"""


class Written(NamedTuple):
    """What became of the events of a request."""

    accepted: int
    rejects: list[tuple[int, str]]
    """index and reason"""


class RunSink:
    """Where the events of one run go. For one thread at a time."""

    def __init__(self, place: Place, secrets: Mapping[str, SecretStr]) -> None:
        """Raises NotAvailable if its settings cannot be read."""
        try:
            self._stream = StreamConfig.model_validate(place.settings["stream"])
            self._kafka = KafkaConfig.model_validate({**place.settings["kafka"], **secrets})
            self._schema: Schema = load_schema(self._stream.schema_name)
        except (KeyError, ValidationError, FreshetError) as error:
            raise NotAvailable(f"the stream of run {place.name!r} is not known: {error}") from error
        self._decoder, self._packed = Decoder(self._schema), PackedCodec(self._schema)
        self._lock, self._turns = threading.Lock(), count()
        self._sink: Sink | None = None
        self._used_at = 0.0

    def write(self, body: bytes) -> Written:
        """Returns once what is good is durable; raises BadRequest, Conflict or NotAvailable, and nothing is written."""
        payloads = [body] if is_packed(body) else split_events(body)
        decoded = self._decoder.decode([Record(at, None, each, 0) for at, each in enumerate(payloads)], Position(0))
        places = [reject.position for reject in decoded.rejects]
        indices = [place.index if is_packed(body) else place.offset for place in places]
        rejects = list(zip(indices, (reject.reason for reject in decoded.rejects), strict=True))
        if len(decoded):
            with self._lock:
                self._write(self._packed_entries(decoded) if is_packed(body) else self._json_entries(payloads, decoded))
        return Written(len(decoded), rejects[:MOST_REJECTS])

    def close_if_idle(self, now: float) -> None:
        if self._lock.acquire(blocking=False):
            try:
                if self._sink is not None and now - self._used_at > IDLE_SECONDS:
                    self._sink.close()
                    self._sink = None
            finally:
                self._lock.release()

    def close(self) -> None:
        with self._lock:
            if self._sink is not None:
                self._sink.close()
                self._sink = None

    def _write(self, entries: "Sequence[bytes] | list[Entry]") -> None:
        """JSON goes to the partition of its key, as ``freshet produce`` has it; packed records to each in turn."""
        try:
            sink = self._open()
            if isinstance(entries[0], tuple):
                partition = sink.partitions[next(self._turns) % len(sink.partitions)]
                sink.write({partition: entries})  # type: ignore[dict-item]
            else:
                sink.write(Encoder(self._schema, sink.partitions).encode(entries))  # type: ignore[arg-type]
        except LogBusy as error:
            raise Conflict(str(error)) from error
        except (FreshetError, OSError) as error:
            raise NotAvailable(f"the events could not be written: {error}") from error
        self._used_at = monotonic()

    def _open(self) -> Sink:
        if self._sink is None:
            self._sink = open_sink(self._stream, self._kafka, Stop())
        return self._sink

    def _json_entries(self, payloads: Sequence[bytes], decoded: Decoded) -> list[bytes]:
        return [payloads[int(offset)] for offset, _ in decoded.at_B]

    def _packed_entries(self, decoded: Decoded) -> list[Entry]:
        size = self._packed.most
        starts = range(0, len(decoded), size)
        return [(None, self._packed.encode(decoded.samples.slice(at, at + size))) for at in starts]


def split_events(body: bytes) -> list[bytes]:
    """The events of a body: one object, a list of them, or one a line; each as it came. Raises BadRequest."""
    if is_too_deep(body):
        raise BadRequest("the body is nested too deeply; expected events")
    try:
        if body.lstrip()[:1] == b"[":
            events = [bytes(event) for event in msgspec.json.decode(body, type=list[msgspec.Raw])]
        else:
            events = [line for line in body.splitlines() if line.strip()]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is no list of events: {error}; expected JSON; correct it") from error
    if not 1 <= len(events) <= MOST_EVENTS:
        raise BadRequest(f"{len(events)} events; expected 1 to {MOST_EVENTS}; send as many in a request")
    return events


class SampleSinks:
    """The sinks of all runs."""

    def __init__(self, secrets: Mapping[str, SecretStr]) -> None:
        self._secrets = secrets
        self._sinks: dict[str, tuple[Any, RunSink]] = {}

    async def write(self, place: Place, body: bytes) -> Written:
        """See RunSink.write; in a thread, since disks and brokers take their time."""
        known, sink = self._sinks.get(place.name, (None, None))
        if sink is None or known is not place:
            sink = await asyncio.to_thread(RunSink, place, self._secrets)
            self._sinks[place.name] = place, sink
        return await asyncio.to_thread(sink.write, body)

    async def tidy(self) -> None:
        """Closes what is idle, until it is cancelled."""
        while True:
            await asyncio.sleep(IDLE_SECONDS / 5)
            for _, sink in list(self._sinks.values()):
                await asyncio.to_thread(sink.close_if_idle, monotonic())

    def close(self) -> None:
        for _, sink in self._sinks.values():
            sink.close()

"""Events that arrive over HTTP: checked against the run's schema, then written where its dispatcher reads them.

Accepted events are durable. A request that is repeated with its idempotency key is not written twice, whichever process
was killed in between (``api/runs/requests.py``). The embedded log allows one writer: while ``freshet produce`` writes,
events are refused here, and this process releases the log after a few seconds without events.
"""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from itertools import count
from time import monotonic, time
from typing import Any, NamedTuple

from pydantic import SecretStr, ValidationError

from api.runs.places import Place
from api.runs.requests import MOST_EVENTS, RequestId, WrittenRequests, request_id
from infra.base.errors import FreshetError
from infra.base.process import Stop
from infra.web.errors import Conflict, KeyReused, NotAvailable
from infra.web.events import DecodedBody, RejectedEvent, decode_body
from ingest.codec.decoder import Decoded, Decoder
from ingest.codec.packed import PackedCodec
from ingest.config import StreamConfig
from ingest.errors import LogBusy
from ingest.kafka.config import KafkaConfig
from ingest.opening import open_sink, open_source
from ingest.producing.encoder import partition_key, partition_of
from ingest.schema import Schema, load_schema
from ingest.streams.sink import Entry, Sink
from ingest.streams.source import Source

IDLE_SECONDS = 5.0
"""Time without events after which a log is closed, so that another writer can open it."""


class Written(NamedTuple):
    """The result for the events of a request."""

    accepted: int
    rejects: list[RejectedEvent]


class RunSink:
    """Writes the events of one run to its stream, one request at a time."""

    def __init__(self, place: Place, secrets: Mapping[str, SecretStr]) -> None:
        """Raises NotAvailable if the run's settings cannot be read."""
        try:
            self._stream = StreamConfig.model_validate(place.settings["stream"])
            self._kafka = KafkaConfig.model_validate({**place.settings["kafka"], **secrets})
            self._schema: Schema = load_schema(self._stream.schema_name)
        except (KeyError, ValidationError, FreshetError) as error:
            raise NotAvailable(f"the stream of run {place.name!r} is not known: {error}") from error
        self._decoder, self._packed = Decoder(self._schema), PackedCodec(self._schema)
        self._lock = threading.Lock()
        self._turns = count()
        self._sink: Sink | None = None
        self._source: Source | None = None
        """Reads back what was written; opened for the first request with a key."""
        self._written = WrittenRequests()
        self._used_at = 0.0

    def write(self, body: bytes, actor: str = "", key: str | None = None) -> Written:
        """Returns once the accepted events are durable; raises BadRequest, Conflict or NotAvailable.

        If ``key`` is given, parts of the same request of that actor that were written before are not written again.
        """
        events = decode_body(self._decoder, body, MOST_EVENTS)
        accepted = len(events.decoded)
        if accepted:
            records = self._packed_records(events.decoded) if events.is_packed else _good_payloads(events)
            request = None if key is None else request_id(actor, key, body, len(records))
            with self._lock:
                self._write(records, events.is_packed, request)
        return Written(accepted, events.rejects)

    def close_if_idle(self, now: float) -> None:
        if self._lock.acquire(blocking=False):
            try:
                if self._sink is not None and now - self._used_at > IDLE_SECONDS:
                    self._close()
            finally:
                self._lock.release()

    def close(self) -> None:
        with self._lock:
            self._close()

    def _write(self, records: Sequence[bytes], are_packed: bool, request: RequestId | None) -> None:
        """Writes the records of a request; if it has a key, only those that are missing."""
        try:
            sink = self._open()
            parts = range(len(records)) if request is None else self._missing(request)
            placed = [(part, *self._place(records[part], are_packed, sink)) for part in parts]
            entries: dict[int, list[Entry]] = {}
            for part, partition, key in placed:
                entry = key if request is None else request.tag(part), records[part]
                entries.setdefault(partition, []).append(entry)
            if entries:
                sink.write(entries)
        except LogBusy as error:
            raise Conflict(str(error)) from error
        except KeyReused:
            raise
        except (FreshetError, OSError) as error:
            self._close()  # whoever opens the log next sees what was written of the request
            raise NotAvailable(f"the events could not be written: {error}") from error
        if request is not None:
            for part in parts:
                self._written.add(request, part, time())
        self._used_at = monotonic()

    def _missing(self, request: RequestId) -> list[int]:
        if self._source is None:
            self._source = open_source(self._stream, self._kafka)
        self._written.read_new(self._source)
        return self._written.missing(request)

    def _place(self, record: bytes, is_packed: bool, sink: Sink) -> tuple[int, bytes | None]:
        """Partition and key of a record: JSON as in ``freshet produce``, packed records round robin."""
        key = None if is_packed else partition_key(record, self._schema)
        number = next(self._turns) if key is None else partition_of(key, len(sink.partitions))
        return sink.partitions[number % len(sink.partitions)], key

    def _open(self) -> Sink:
        if self._sink is None:
            self._sink = open_sink(self._stream, self._kafka, Stop())
        return self._sink

    def _close(self) -> None:
        for opened in (self._sink, self._source):
            if opened is not None:
                opened.close()
        self._sink = self._source = None

    def _packed_records(self, decoded: Decoded) -> list[bytes]:
        size = self._packed.most
        return [self._packed.encode(decoded.samples.slice(at, at + size)) for at in range(0, len(decoded), size)]


def _good_payloads(events: DecodedBody) -> list[bytes]:
    """The payloads of events that fit the schema, unchanged, for events that came as JSON."""
    return [events.payloads[int(offset)] for offset, _ in events.decoded.at_B]


class SampleSinks:
    """The sinks of all runs, by name."""

    def __init__(self, secrets: Mapping[str, SecretStr]) -> None:
        self._secrets = secrets
        self._sinks: dict[str, tuple[Any, RunSink]] = {}

    async def write(self, place: Place, body: bytes, actor: str, key: str | None) -> Written:
        """Calls RunSink.write in a thread, since disks and brokers may be slow."""
        known, sink = self._sinks.get(place.name, (None, None))
        if sink is None or known is not place:
            sink = await asyncio.to_thread(RunSink, place, self._secrets)
            self._sinks[place.name] = place, sink
        return await asyncio.to_thread(sink.write, body, actor, key)

    async def tidy(self) -> None:
        """Closes idle logs until it is cancelled."""
        while True:
            await asyncio.sleep(IDLE_SECONDS / 5)
            for _, sink in list(self._sinks.values()):
                await asyncio.to_thread(sink.close_if_idle, monotonic())

    def close(self) -> None:
        for _, sink in self._sinks.values():
            sink.close()

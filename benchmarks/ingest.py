"""``freshet bench ingest``: decode rates of both codecs, rates of the embedded log, and the loader from end to end."""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ingest.batches.job import LoaderJob
from ingest.batches.loader import Loader
from ingest.codec.json_events import JsonCodec, encode_json
from ingest.codec.packed import PackedCodec
from ingest.convert import Event
from ingest.log.embedded import LogReader, LogWriter
from ingest.producing.synthetic import synthetic_events
from ingest.samples import Samples
from ingest.schema import Schema, load_schema
from ingest.streams.sink import Entry

SAMPLES_PER_RECORD = 256
APPEND_RECORDS = 1024
ROUNDS = 5


@dataclass(frozen=True)
class IngestResult:
    """One measured path."""

    name: str
    samples: int
    seconds: float
    """Best of several rounds if a round can be repeated."""
    microseconds_per_sample: float
    samples_per_second: float
    payload_bytes: int
    megabytes_per_second: float


def run_ingest(folder: Path, samples: int = 20_000) -> list[IngestResult]:
    """Measures everything on the synthetic stream; folder must be empty, and the logs stay in it."""
    schema = load_schema("synthetic")
    events = list(islice(synthetic_events(0), samples))
    payloads = _json_payloads(events)
    packed = _packed_payloads(events, schema)
    return [
        *_bench_codecs(events, payloads, packed, schema),
        *_bench_path(folder, "json", payloads, samples, schema),
        *_bench_path(folder, "packed", packed, samples, schema),
    ]


def _json_payloads(events: list[Event]) -> list[bytes]:
    return [encode_json(event) for event in events]


def _packed_payloads(events: list[Event], schema: Schema) -> list[bytes]:
    codec = PackedCodec(schema)
    return [
        codec.encode_events(events[at : at + SAMPLES_PER_RECORD]) for at in range(0, len(events), SAMPLES_PER_RECORD)
    ]


def _bench_codecs(
    events: list[Event], payloads: list[bytes], packed: list[bytes], schema: Schema
) -> list[IngestResult]:
    json_codec = JsonCodec(schema)
    packed_codec = PackedCodec(schema)
    count = len(events)
    decoded: Samples = packed_codec.decode(packed)[0]

    def pack() -> None:
        for at in range(0, count, SAMPLES_PER_RECORD):
            packed_codec.encode(decoded.slice(at, at + SAMPLES_PER_RECORD))

    return [
        _result("json encode", count, payloads, _best(lambda: _json_payloads(events))),
        _result("json decode", count, payloads, _best(lambda: _in_parts(json_codec.decode, payloads, 4096))),
        _result("packed encode", count, packed, _best(pack)),
        _result("packed decode", count, packed, _best(lambda: _in_parts(packed_codec.decode, packed, 16))),
    ]


def _in_parts(decode: Callable[[list[bytes]], object], payloads: list[bytes], size: int) -> None:
    """Decodes about a megabyte at a time, as the loader does."""
    for at in range(0, len(payloads), size):
        decode(payloads[at : at + size])


def _bench_path(folder: Path, topic: str, payloads: list[bytes], samples: int, schema: Schema) -> list[IngestResult]:
    """Appends, reads and loads one topic."""
    append_seconds = _timed(lambda: _append(folder, topic, payloads))
    return [
        _result(f"log append, {topic}", samples, payloads, append_seconds),
        _result(f"log read, {topic}", samples, payloads, _best(lambda: _read(folder, topic))),
        _result(f"loader, {topic}", samples, payloads, _best(lambda: _load(folder, topic, schema))),
    ]


def _append(folder: Path, topic: str, payloads: list[bytes]) -> None:
    entries: list[Entry] = [(None, payload) for payload in payloads]
    with closing(LogWriter(folder, topic, 2)) as writer:
        for number, at in enumerate(range(0, len(entries), APPEND_RECORDS)):
            writer.append(number % 2, entries[at : at + APPEND_RECORDS])


def _read(folder: Path, topic: str) -> None:
    with closing(LogReader(folder, topic)) as reader:
        for partition in reader.partitions():
            offset, end = reader.span(partition)
            while offset < end:
                offset += len(reader.read(partition, offset))


def _load(folder: Path, topic: str, schema: Schema) -> None:
    with (
        closing(LogReader(folder, topic)) as source,
        closing(Loader(source, LoaderJob(schema, 512, stop_at_end=True))) as loader,
    ):
        while loader.next() is not None:
            pass


def _best(work: Callable[[], object]) -> float:
    return min(_timed(work) for _ in range(ROUNDS))


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _result(name: str, samples: int, payloads: list[bytes], seconds: float) -> IngestResult:
    size = sum(map(len, payloads))
    return IngestResult(
        name=name,
        samples=samples,
        seconds=seconds,
        microseconds_per_sample=seconds / samples * 1e6,
        samples_per_second=samples / seconds,
        payload_bytes=size,
        megabytes_per_second=size / seconds / 1e6,
    )

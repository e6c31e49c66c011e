"""``freshet bench ingest --kafka``: from a real broker to decoded batches, with both client libraries, in one run.

The paths are read in turn for several rounds, so that all of them meet the same noise, and the best round of each
counts. The decoder alone and the source alone (records, not decoded) are measured on the same records.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from uuid import uuid4

from kafka import KafkaAdminClient, KafkaProducer

from ingest.batches.job import LoaderJob
from ingest.batches.loader import Loader
from ingest.codec.decoder import Decoder
from ingest.codec.json_events import encode_json
from ingest.codec.packed import PackedCodec
from ingest.errors import SourceUnavailable
from ingest.kafka.config import Client, KafkaConfig, kafka_python_arguments
from ingest.kafka.source import KafkaSource
from ingest.producing.synthetic import synthetic_events
from ingest.schema import Schema, load_schema
from ingest.streams.position import Position
from ingest.streams.source import Record

PARTITIONS = 4
SAMPLES_PER_RECORD = 64
BATCH = 512
ROUNDS = 5
DECODE_RECORDS = {"json": 4096, "packed": 64}
"""Records per call, as in the loader: about a megabyte at a time."""


@dataclass(frozen=True)
class KafkaResult:
    """One client library on one encoding."""

    name: str
    client: str
    samples: int
    records: int
    batch_samples_per_second: float
    """From broker to decoded batch: the most important figure."""
    record_samples_per_second: float
    """From broker to records in this process."""
    decode_samples_per_second: float
    """From records in memory to samples."""
    decode_ms_per_batch: float
    """Time to decode a batch of 512 samples."""
    decode_share: float
    """Share of decoding in the time from broker to batch."""
    payload_bytes: int


def run_kafka(config: KafkaConfig, samples: int) -> list[KafkaResult]:
    """Measures both encodings on every client library that is installed."""
    schema = load_schema("synthetic")
    others: tuple[Client, ...] = ("confluent-kafka",) if find_spec("confluent_kafka") else ()
    configs = [config.model_copy(update={"client": client}) for client in ("kafka-python", *others)]
    paths = []
    for encoding, payloads in _payloads(schema, samples).items():
        topic = f"bench-{encoding}-{uuid4().hex[:8]}"
        _fill(config, topic, payloads)
        paths += [(encoding, payloads, topic, one) for one in configs]
    best = [[float("inf")] * 3 for _ in paths]
    for _ in range(ROUNDS):
        for path, times in zip(paths, best, strict=True):
            times[:] = map(min, times, _round(schema, samples, *path))
    with closing(KafkaAdminClient(**kafka_python_arguments(config))) as admin:
        admin.delete_topics([*{topic for _, _, topic, _ in paths}])
    return [_result(path[0], path[3].client, samples, path[1], times) for path, times in zip(paths, best, strict=True)]


def _payloads(schema: Schema, samples: int) -> dict[str, list[bytes]]:
    events = list(islice(synthetic_events(0), samples))
    codec = PackedCodec(schema)
    size = SAMPLES_PER_RECORD
    packed = [codec.encode_events(events[at : at + size]) for at in range(0, samples, size)]
    return {"json": [encode_json(event) for event in events], "packed": packed}


def _fill(config: KafkaConfig, topic: str, payloads: Sequence[bytes]) -> None:
    with closing(KafkaAdminClient(**kafka_python_arguments(config))) as admin:
        admin.create_topics({topic: {"num_partitions": PARTITIONS, "replication_factor": 1, "configs": {}}})
    options = {"acks": "all", "linger_ms": 20, "batch_size": 1 << 18, "compression_type": "lz4"}
    with closing(KafkaProducer(**kafka_python_arguments(config), **options)) as producer:
        for number, payload in enumerate(payloads):
            producer.send(topic, value=payload, partition=number % PARTITIONS)
        producer.flush()


def _round(
    schema: Schema, samples: int, encoding: str, payloads: Sequence[bytes], topic: str, config: KafkaConfig
) -> tuple[float, float, float]:
    """Seconds from broker to batches, from broker to records, and of decoding alone."""
    with closing(KafkaSource(config, topic)) as source:
        batches = _timed(lambda: _load(source, schema, samples))
    with closing(KafkaSource(config, topic)) as source:
        records = _timed(lambda: _read(source, len(payloads)))
    return batches, records, _timed(lambda: _decode(schema, payloads, DECODE_RECORDS[encoding]))


def _load(source: KafkaSource, schema: Schema, samples: int) -> None:
    with closing(Loader(source, LoaderJob(schema, BATCH, stop_at_end=True))) as loader:
        found = 0
        while (batch := loader.next()) is not None:
            found += len(batch.samples)
    assert found == samples, f"{found} of {samples} samples came back"


def _read(source: KafkaSource, records: int) -> None:
    found = 0
    positions = dict.fromkeys(source.partitions(), 0)
    while found < records:
        for partition, offset in positions.items():
            with suppress(SourceUnavailable):  # asks again, as the loader does
                came = source.read(partition, offset)
                found, positions[partition] = found + len(came), offset + len(came)


def _decode(schema: Schema, payloads: Sequence[bytes], size: int) -> None:
    decoder = Decoder(schema)
    for at in range(0, len(payloads), size):
        part = [Record(at + number, None, payload, 0) for number, payload in enumerate(payloads[at : at + size])]
        decoder.decode(part, Position(at))


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _result(encoding: str, client: str, samples: int, payloads: Sequence[bytes], times: Sequence[float]) -> KafkaResult:
    batches, records, decode = times
    return KafkaResult(
        name=f"kafka, {encoding}",
        client=client,
        samples=samples,
        records=len(payloads),
        batch_samples_per_second=samples / batches,
        record_samples_per_second=samples / records,
        decode_samples_per_second=samples / decode,
        decode_ms_per_batch=1000 * decode * BATCH / samples,
        decode_share=decode / batches,
        payload_bytes=sum(map(len, payloads)),
    )

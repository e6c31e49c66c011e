"""Events and logs that the tests of this folder share, and the folder of real data if there is one."""

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from ingest.batches.batch import Batch
from ingest.batches.loader import Loader
from ingest.codec.json_events import encode_json
from ingest.convert import Event
from ingest.log.embedded import LogWriter
from ingest.producing.synthetic import synthetic_events
from ingest.schema import Schema, load_schema, parse_schema
from ingest.streams.position import Position
from ingest.streams.source import Record

SYNTHETIC = load_schema("synthetic")

SMALL_TEXT = """
name = "small"
partition_by = "user"
tables = [
    {name = "user"}, {name = "tags", values = 3}, {name = "age_bucket", source = "age", bucket = "log_square"}
]
dense_fields = [{name = "age", max = 200}, {name = "score", transform = "identity", min = -5, max = 5}]
limits = {record_bytes = 4096, string_bytes = 32}
"""
SMALL = parse_schema(SMALL_TEXT, "small")


def events(count: int, seed: int = 1) -> list[Event]:
    return list(islice(synthetic_events(seed), count))


def json_records(payloads: Sequence[bytes], first: int = 0) -> list[Record]:
    return [Record(first + i, None, payload, 0) for i, payload in enumerate(payloads)]


def write_json(folder: Path, given: Sequence[Event], partitions: int = 2, topic: str = "clicks") -> None:
    """Writes events to the partitions in turn."""
    writer = LogWriter(folder, topic, partitions)
    for partition in range(partitions):
        writer.append(partition, [(None, encode_json(event)) for event in given[partition::partitions]])
    writer.close()


def drain(loader: Loader) -> Iterator[Batch]:
    while (batch := loader.next(timeout=60)) is not None:
        yield batch
    assert loader.ended
    loader.close()


def ends(batches: Sequence[Batch]) -> dict[int, Position]:
    """Where to go on after these batches."""
    return {r.partition: r.end for batch in batches for r in batch.ranges}


def real_data() -> Path | None:
    """The folder with the public data sets, if this machine has it."""
    default = Path(__file__).parents[2].parent / "shared" / "data"
    folder = Path(os.environ.get("FRESHET_DATA", default))
    return folder if folder.is_dir() else None


__all__ = ["SMALL", "SYNTHETIC", "Schema", "drain", "ends", "events", "json_records", "real_data", "write_json"]

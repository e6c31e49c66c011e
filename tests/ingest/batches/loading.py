"""Batches of a log, as the tests of this folder load them."""

from pathlib import Path

from infra.base.process import Stop
from ingest.batches.batch import Batch
from ingest.batches.job import LoaderJob
from ingest.batches.loader import Loader
from ingest.log.embedded import LogReader, LogWriter
from ingest.producing.encoder import Encoder
from ingest.producing.producer import produce
from ingest.streams.position import Position
from tests.ingest.topics import SYNTHETIC, drain, events


def load(
    folder: Path, batch: int = 64, start: dict[int, Position] | None = None, limit: int | None = None
) -> list[Batch]:
    """All batches of what is in the log now."""
    source = LogReader(folder, "clicks")
    return list(drain(Loader(source, LoaderJob(SYNTHETIC, batch, start or {}, limit=limit, stop_at_end=True))))


def poisoned(folder: Path, samples_per_record: int, good: int = 600) -> tuple[list[Batch], int]:
    """Batches of a stream with 5 % bad events, and how many those were."""
    writer = LogWriter(folder, "clicks", 2)
    made = produce(events(good), writer, Encoder(SYNTHETIC, writer.partitions, samples_per_record, 0.05), Stop())
    writer.close()
    assert made.events == good + made.poisoned
    return load(folder, 64), made.poisoned

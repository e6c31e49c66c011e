"""The events of a plan: from a file, from a run's topic, or synthetic; split into batches as in a run."""

import tempfile
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

from benchmarks.clicks import read_samples
from benchmarks.train import made_up_clicks
from infra.base.errors import ConfigError
from infra.run.settings import Settings
from ingest.batches.job import LoaderJob
from ingest.batches.loader import Loader
from ingest.log.embedded import LogReader, LogWriter
from ingest.opening import open_source
from ingest.producing.readers import read_jsonl
from ingest.samples import Samples, join_samples
from ingest.streams.source import Source

LEAST_BATCHES = 4
TOPIC = "sample"
LINES = 4096
"""Lines of a file that are written at a time."""


def file_batches(settings: Settings, file: Path, dataset: str, most: int) -> list[Samples]:
    """Batches of a file: JSON lines, or a public data set."""
    if dataset == "jsonl":
        return _of_lines(settings, file, most)
    return check_batches(list(_batches(read_samples(dataset, file, settings.event_schema), settings, most)), settings)


def topic_batches(settings: Settings, most: int) -> list[Samples]:
    """Batches of the topic that the settings name, from its oldest event on."""
    with closing(open_source(settings.stream, settings.kafka)) as source:
        return _of_source(source, settings, most)


def made_up_batches(settings: Settings, most: int) -> list[Samples]:
    """Synthetic batches: those of the demo, or clicks of the schema's shape."""
    wanted = most * settings.stream.batch
    parts = made_up_clicks(settings.stream.schema_name, settings.event_schema, settings.seed, wanted)
    return list(_batches(parts, settings, most))


def _of_lines(settings: Settings, file: Path, most: int) -> list[Samples]:
    """Uses a temporary log, so that lines are decoded, rejected and put into batches as in a run."""
    if not file.is_file():
        raise ConfigError(f"no file at {file}; expected events, one JSON object a line; correct the path")
    lines = (line for line in islice(read_jsonl(file), most * settings.stream.batch) if line is not None)
    with tempfile.TemporaryDirectory(prefix="freshet-") as place:
        with closing(LogWriter(Path(place), TOPIC, 1, settings.stream.segment_bytes)) as writer:
            while chunk := list(islice(lines, LINES)):
                writer.append(0, [(None, line) for line in chunk])
        with closing(LogReader(Path(place), TOPIC)) as source:
            return _of_source(source, settings, most)


def _of_source(source: Source, settings: Settings, most: int) -> list[Samples]:
    size = settings.stream.batch
    loader = Loader(source, LoaderJob(settings.event_schema, size, limit=most * size, stop_at_end=True))
    with closing(loader):
        batches = []
        while (batch := loader.next()) is not None:
            batches.append(batch.samples)
    return check_batches([batch for batch in batches if len(batch) == size], settings)


def _batches(parts: Iterator[Samples], settings: Settings, most: int) -> Iterator[Samples]:
    """Splits the samples into whole batches."""
    size = settings.stream.batch
    found = 0
    left: list[Samples] = []
    for part in parts:
        left.append(part)
        joined = join_samples(left)
        whole = len(joined) // size * size
        for start in range(0, whole, size):
            yield joined.slice(start, start + size)
            found += 1
            if found == most:
                return
        left = [joined.slice(whole, len(joined))]


def check_batches(batches: list[Samples], settings: Settings) -> list[Samples]:
    """Raises ConfigError for too few of them."""
    if len(batches) < LEAST_BATCHES:
        raise ConfigError(
            f"the sample makes {len(batches)} whole batches of {settings.stream.batch} samples; expected at least "
            f"{LEAST_BATCHES}; give more events, or lower stream.batch"
        )
    return batches

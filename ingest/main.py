"""The producer process: writes events of the synthetic stream, of a file or of stdin into the embedded log or Kafka.

A crash or a stop leaves whole records only; what the summary counts is durable. The synthetic stream continues where
the topic ends: exactly after a stop; after a crash the events of at most one append are repeated or missing.
"""

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from infra.base.errors import ConfigError
from infra.base.process import Stop
from ingest.config import StreamConfig
from ingest.kafka.config import KafkaConfig
from ingest.opening import open_sink
from ingest.producing.delayed import Ask, Tell, delay_labels
from ingest.producing.encoder import Encoder
from ingest.producing.follow import FollowedFile
from ingest.producing.producer import Produced, Unit, produce
from ingest.producing.readers import STDIN, read_dataset
from ingest.producing.synthetic import synthetic_events
from ingest.producing.tables import is_table, lines_as_events, read_events
from ingest.schema import FileColumns, Schema, load_schema


@dataclass(frozen=True)
class ProducerJob:
    """What a producer writes, where to, how fast, and when it ends."""

    stream: StreamConfig
    kafka: KafkaConfig = field(default_factory=KafkaConfig)
    dataset: str = "synthetic"
    """synthetic, criteo, avazu, movielens or jsonl."""
    path: Path | None = None
    """File of the dataset; ``-`` is stdin."""
    follows: bool = False
    """Whether to keep reading as the file grows."""
    from_byte: int = 0
    """Where to begin in a file that is followed."""
    seed: int = 0
    """Seed of the synthetic stream."""
    clock: Callable[[], float] | None = None
    """Clock for the times of synthetic events; None: the stream's own time, which is always the same."""
    rate: float | None = None
    """Events per second; None: as fast as possible."""
    limit: int | None = None
    """Number of good events; None: no limit."""
    samples_per_record: int = 0
    """Samples of a packed record; 0 writes JSON."""
    poison_share: float = 0.0
    """Share of bad events, added to the good ones."""
    duration_seconds: float | None = None
    label_seconds: float | None = None
    """How much later than their predictions labels are written; None: no predictions are requested."""

    def check(self) -> None:
        """Raises ConfigError for a job that cannot be done, before anything is written."""
        rate = self.rate
        limit = self.limit
        seconds = self.duration_seconds
        checks = (
            ("rate", rate, "events a second above 0", rate is None or rate > 0),
            ("limit", limit, "0 or more events", limit is None or limit >= 0),
            ("duration", seconds, "seconds above 0", seconds is None or seconds > 0),
            ("samples_per_record", self.samples_per_record, "0 (JSON) or more", self.samples_per_record >= 0),
            ("poison_share", self.poison_share, "0 to 0.9", 0 <= self.poison_share <= 0.9),
            ("label_seconds", self.label_seconds, "0 or more seconds", (self.label_seconds or 0) >= 0),
        )
        for name, value, expected, good in checks:
            if not good:
                raise ConfigError(f"cannot produce with {name} = {value}; expected {expected}; correct it")
        if self.dataset == "jsonl" and (self.samples_per_record or self.poison_share):
            raise ConfigError(
                "lines of jsonl are written as they are; expected no --packed and no --poison; leave the option out"
            )
        if self.label_seconds is not None and (self.samples_per_record or self.poison_share):
            raise ConfigError(
                "events of which predictions are asked for are written as JSON, as they are; expected no --packed and "
                "no --poison beside --predict-url; leave the option out"
            )
        if self.dataset != "synthetic":
            _check_path(self.dataset, self.path)
        self._check_follow()

    def _check_follow(self) -> None:
        if self.from_byte and not self.follows:
            raise ConfigError("--from-byte is given without --follow; expected both; add --follow")
        if not self.follows:
            return
        has_lines = self.path is not None and self.path.suffix != ".gz" and not is_table(self.path)
        if self.dataset != "jsonl" or self.path is None or not self.path.is_file() or not has_lines:
            raise ConfigError(
                f"{self.path} of dataset {self.dataset!r} cannot be followed; expected a plain file of lines, with "
                "--dataset jsonl; leave out --follow (stdin and pipes are read until they are closed anyway)"
            )
        FollowedFile(self.path, self.from_byte).check()


def run_producer(
    job: ProducerJob,
    stop: Stop,
    show: Callable[[Produced], None] = lambda so_far: None,
    ask: Ask | None = None,
    tell: Tell = lambda line: None,
) -> Produced:
    """Produces until the events end, limit good ones are written, the time is over, or a stop is requested.

    ask: requests predictions, with label_seconds. tell: reports events without a prediction, and changes of a followed
    file.
    """
    job.check()
    followed = FollowedFile(job.path, job.from_byte, tell) if job.follows and job.path is not None else None

    def placed(done: Produced) -> Produced:
        # while events wait for their labels, it is unknown which lines are written
        if followed is None or job.label_seconds is not None:
            return done
        return replace(done, read_to=followed.position, is_waiting=followed.is_at_end)

    schema = load_schema(job.stream.schema_name)
    with closing(open_sink(job.stream, job.kafka, stop)) as sink:
        # The end of the topic is the number of events only if every record is one good event.
        is_counted = job.dataset == "synthetic" and not (job.samples_per_record or job.poison_share)
        start = sum(sink.ends().values()) if is_counted else 0
        events = _events(job, start, schema.file) if followed is None else _followed(followed, schema)
        encoder = Encoder(schema, sink.partitions, job.samples_per_record, job.poison_share)
        rate = job.rate
        if ask is not None and job.label_seconds is not None:
            events = delay_labels(islice(events, job.limit), ask, job.label_seconds, stop.wait, rate, tell)
            rate = None  # predictions are requested at that rate
        done = produce(
            events,
            sink,
            encoder,
            stop,
            rate=rate,
            limit=job.limit,
            duration_seconds=job.duration_seconds,
            show=lambda so_far: show(placed(so_far)),
        )
        return placed(done)


def _check_path(dataset: str, path: Path | None) -> None:
    if path is None:
        raise ConfigError(f"no file given for dataset {dataset!r}; expected its path; add it after the dataset's name")
    is_stream = dataset == "jsonl" and (path == STDIN or (path.exists() and not path.is_dir()))
    if not (is_stream or path.is_file()):
        raise ConfigError(f"no dataset file at {path}; expected a {dataset} file; give its path")


def _followed(file: FollowedFile, schema: Schema) -> Iterable[Unit]:
    return file.lines() if schema.file is None else lines_as_events(file.lines(), schema.file)


def _events(job: ProducerJob, start: int, columns: FileColumns | None) -> Iterable[Unit]:
    if job.dataset == "synthetic":
        return synthetic_events(job.seed, start, job.clock)
    assert job.path is not None, "checked before"
    return read_events(job.path, columns) if job.dataset == "jsonl" else read_dataset(job.dataset, job.path)

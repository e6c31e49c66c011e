"""The commands around the stream: write events, read dead letters, create and inspect topics."""

import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from infra.base.errors import ConfigError
from infra.base.process import is_supervised
from infra.cli import daemons
from infra.cli.options import RunOptions, SettingsOptions, grouped
from infra.run.figures import count, size
from infra.run.settings import CA_FILE, TOKEN

if TYPE_CHECKING:
    from infra.cli.steer.client import ApiClient
    from infra.run.settings import Settings
    from ingest.producing.delayed import Ask
    from ingest.producing.producer import Produced

Dataset = Literal["synthetic", "criteo", "avazu", "movielens", "jsonl"]
Kafka = Annotated[bool, typer.Option("--kafka", help="Short for --set stream.source=kafka.")]
UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
UNITS_BYTES = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
FOREVER = "-1"
LINE_SECONDS = 10.0
"""Time between two lines of progress if the output is not a terminal."""

topics = typer.Typer(
    help="Topics: create and list them on Kafka, describe them there or in the embedded log.", no_args_is_help=True
)


@dataclass(frozen=True)
class ProduceOptions:
    """What to produce, how fast and how much."""

    file: Annotated[Path | None, typer.Argument(help="File to read; - for stdin (jsonl).", show_default=False)] = None
    dataset: Annotated[Dataset, typer.Option(help="What to produce.")] = "synthetic"
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Keep reading as the file grows, even after it is rotated or truncated (jsonl)."),
    ] = False
    from_byte: Annotated[
        int, typer.Option(help="With --follow: begin at this byte, as printed when an earlier command ended.", min=0)
    ] = 0
    rate: Annotated[float | None, typer.Option(help="Events a second.", show_default=False)] = None
    duration: Annotated[float | None, typer.Option(help="Stop after this many seconds.", show_default=False)] = None
    limit: Annotated[int | None, typer.Option(help="Stop after this many good events.", show_default=False)] = None
    packed: Annotated[int, typer.Option(help="Samples per packed record; 0 writes JSON.")] = 0
    poison: Annotated[float, typer.Option(help="Share of deliberately bad events of every kind, for drills.")] = 0.0
    predict_url: Annotated[
        str, typer.Option("--predict-url", help="Request predictions from this server first; write labels later.")
    ] = ""
    label_seconds: Annotated[float, typer.Option(help="How much later, with --predict-url.", min=0)] = 5.0
    kafka: Kafka = False
    seed_from_settings: Annotated[bool, typer.Option("--seed-from-settings", hidden=True)] = False
    seed: Annotated[int, typer.Option(help="Seed of the synthetic stream.")] = 0


@grouped
def produce(what: ProduceOptions, given: RunOptions) -> None:
    """Write events into the embedded log or Kafka: your own, a synthetic stream, or a Criteo, Avazu or MovieLens file.

    Your own events are jsonl: one JSON object per line, in a file or on stdin. A line that is not a valid event is
    written as it is, and becomes a dead letter with its reason. With --follow the file is read from its start and then
    as it grows; at the end the command prints the byte up to which lines were written. A synthetic stream continues
    where the topic ends. With --predict-url each event is first sent to 'freshet serve' without its label, and later
    written with its label and the id of the prediction; FRESHET_TOKEN is the server's token.

    Example: freshet produce --dataset criteo train.txt --rate 5000

    Example: freshet produce clicks.jsonl --dataset jsonl --follow
    """
    stop = daemons.start()
    schema = {} if what.dataset == "jsonl" else {"stream": {"schema_name": what.dataset}}
    settings = given.load(schema, what.kafka)
    from ingest.main import ProducerJob, run_producer

    job = ProducerJob(
        settings.stream,
        settings.kafka,
        dataset=what.dataset,
        path=what.file,
        follows=what.follow,
        from_byte=what.from_byte,
        seed=settings.seed if what.seed_from_settings else what.seed,
        clock=time.time,
        rate=what.rate,
        limit=what.limit,
        samples_per_record=what.packed,
        poison_share=what.poison,
        duration_seconds=what.duration,
        label_seconds=what.label_seconds if what.predict_url else None,
    )
    job.check()
    console = Console(stderr=True)
    with predicting(what.predict_url) as ask:
        daemons.begin(settings, "produce", logs_settings=False)
        with progress_of(console, what.limit) as show:
            done = run_producer(
                job, stop, show, ask, lambda line: console.print(Text(f"freshet: {line}"), soft_wrap=True)
            )
    console.print(Text(_summary(done, settings) + _goes_on(done, what.file)), soft_wrap=True)


@grouped
def dead_letters(kafka: Kafka = False, *, given: RunOptions) -> None:
    """Print the rejected events, one JSON line each: partition, offset, index, reason, payload.

    Example: freshet dead-letters --run demo-20261115-021100
    """
    settings = given.or_only_run("stream", "kafka", kafka=kafka).load(kafka=kafka)
    from ingest.opening import read_letters

    if settings.stream.source != "kafka":
        _check_embedded(settings.stream.folder, settings.stream.dead_letter_topic, "stream.dead_letter_topic")
    for letter in read_letters(settings.stream, settings.kafka):
        line = {**msgspec.structs.asdict(letter), "payload": letter.payload.decode(errors="backslashreplace")}
        typer.echo(msgspec.json.encode(line).decode())


# ── topics ────────────────────────────────────────────────────────────────────────────────────────────────────────────
@topics.command()
@grouped
def create(
    partitions: Annotated[
        int | None, typer.Option(help="Partitions of the events topic.", min=1, show_default=False)
    ] = None,
    replication: Annotated[int, typer.Option(help="Copies of each partition.", min=1)] = 1,
    retention: Annotated[str | None, typer.Option(help="How long to keep events: 7d, 12h, forever.")] = None,
    retention_size: Annotated[str | None, typer.Option(help="How much to keep per partition: 10GiB, forever.")] = None,
    compression: Annotated[str | None, typer.Option(help="producer, lz4, zstd or uncompressed.")] = None,
    largest: Annotated[str | None, typer.Option(help="Largest record, compressed: 4MiB.")] = None,
    *,
    given: SettingsOptions,
) -> None:
    """Create the events topic and the dead-letter topic; existing topics must have the requested properties.

    Names come from stream.topic and stream.dead_letter_topic, the number of partitions from stream.partitions. The
    dead-letter topic has one partition, and the same retention.

    Example: freshet topics create --partitions 8 --retention 7d
    """
    settings = given.load()
    from ingest.kafka.clients.admin import TopicSpec
    from ingest.kafka.topics import create_topics

    shared = _given({"retention.ms": _milliseconds(retention), "retention.bytes": _bytes(retention_size)})
    events = shared | _given({"compression.type": compression, "max.message.bytes": _bytes(largest)})
    stream = settings.stream
    specs = (
        TopicSpec(stream.topic, partitions or stream.partitions, replication, events),
        TopicSpec(stream.dead_letter_topic, 1, replication, shared),
    )
    made = create_topics(settings.kafka, specs)
    for spec in specs:
        typer.echo(f"{spec.name}: {'created' if spec.name in made else 'exists already, as requested'}")


@topics.command("list")
@grouped
def list_all(given: SettingsOptions) -> None:
    """List the topics on the broker.

    Example: freshet topics list --set kafka.servers=10.0.0.7:9092
    """
    settings = given.load()
    from ingest.kafka.topics import list_topics

    found = list_topics(settings.kafka)
    columns = ("topic", "partitions", "replication", "retention.ms")
    rows = [(t.name, t.partitions, t.replication, t.configs.get("retention.ms", "")) for t in found]
    _print_table(columns, rows)


@topics.command()
@grouped
def describe(
    topic: Annotated[str | None, typer.Argument(help="stream.topic by default.", show_default=False)] = None,
    kafka: Kafka = False,
    *,
    given: RunOptions,
) -> None:
    """Show the contents of each partition of a topic: in the embedded log, or on Kafka if servers are given.

    On Kafka it also shows how far the display group (kafka.group) has read it.

    Example: freshet topics describe clicks
    """
    given = given.or_only_run("stream", "kafka", kafka=kafka)
    settings = given.load(kafka=kafka)
    name = topic or settings.stream.topic
    is_on_kafka = not given.named and "servers" in settings.kafka.model_fields_set
    if settings.stream.source == "kafka" or is_on_kafka:
        _describe_on_kafka(settings, name)
    else:
        _describe_embedded(settings, name)


def _describe_on_kafka(settings: "Settings", name: str) -> None:
    from ingest.kafka.topics import describe_topic, missing_topic, partition_spans

    found = describe_topic(settings.kafka, name)
    if found is None:
        raise missing_topic(settings.kafka, name, "the name")
    shown = ("retention.ms", "retention.bytes", "compression.type", "max.message.bytes")
    kept = ", ".join(f"{key} {found.configs[key]}" for key in shown if key in found.configs)
    typer.echo(f"{name}: {found.partitions} partitions, replication {found.replication}, {kept}")
    spans = partition_spans(settings.kafka, found)
    rows = [(s.partition, s.first, s.end, _shown(s.committed), _shown(s.lag)) for s in spans]
    _print_table(("partition", "first", "end", f"read by {settings.kafka.group!r}", "lag"), rows)


def _describe_embedded(settings: "Settings", name: str) -> None:
    from ingest.log.embedded import LogReader

    stream = settings.stream
    _check_embedded(stream.folder, name, "the name")
    with closing(LogReader(stream.folder, name)) as log:
        spans = {partition: log.span(partition) for partition in log.partitions()}
    kept = "everything" if stream.retention_bytes is None else f"{size(stream.retention_bytes)} a partition"
    typer.echo(f"{name}: {count(len(spans), 'partition')} in {stream.folder}, keeps {kept} (stream.retention_bytes)")
    rows = [
        (partition, first, end, size(_bytes_in(stream.folder / name / f"{partition:05d}")))
        for partition, (first, end) in spans.items()
    ]
    _print_table(("partition", "first", "end", "size"), rows)


@contextmanager
def predicting(url: str) -> Iterator["Ask | None"]:
    """Opens a connection to a prediction server; None if no server is named."""
    if not url:
        yield None
        return
    from infra.cli.steer.client import ApiClient, check_address

    check_address(url, "--predict-url")
    with ApiClient(url, os.environ.get(TOKEN, ""), _authority()) as client:
        yield lambda samples: ask_predictions(client, samples)


def ask_predictions(client: "ApiClient", samples: Sequence[Mapping[str, Any]]) -> Mapping[int, str]:
    """Requests predictions; returns the reasons of samples that do not fit the schema, by index."""
    from infra.cli.steer.client import ApiRefused
    from ingest.errors import NothingPredicts

    try:
        client.ask("/v1/predict", samples)
    except ApiRefused as refused:
        if refused.status == HTTPStatus.SERVICE_UNAVAILABLE:
            raise NothingPredicts(str(refused)) from refused
        reasons = {error["index"]: error["reason"] for error in refused.errors if {"index", "reason"} <= error.keys()}
        if refused.status != HTTPStatus.UNPROCESSABLE_ENTITY or not reasons:
            raise
        return reasons
    return {}


def _authority() -> Path | None:
    found = os.environ.get(CA_FILE)
    return Path(found) if found else None


# ── shared by the commands ────────────────────────────────────────────────────────────────────────────────────────────
def _check_embedded(folder: Path, topic: str, setting: str) -> None:
    """Raises ConfigError if the embedded log in this folder does not have the topic."""
    if (folder / topic).is_dir():
        return
    found = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    there = f"it has {', '.join(found)}" if found else "nothing was written there"
    raise ConfigError(
        f"no topic {topic!r} in the embedded log {folder}: {there}; expected the folder and the topic of a run; "
        f"correct stream.folder or {setting}, or name the run with --run"
    )


def _bytes_in(partition: Path) -> int:
    return sum(segment.stat().st_size for segment in partition.glob("*.log"))


@contextmanager
def progress_of(console: Console, limit: int | None) -> Iterator[Callable[["Produced"], None]]:
    """A progress bar on a terminal, a line now and then elsewhere; nothing if a supervisor shows the run."""
    if is_supervised():
        yield lambda so_far: None
        return
    if not console.is_terminal or console.is_dumb_terminal:
        yield ProgressLines(console).show
        return
    with Progress(
        TextColumn("producing"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as progress:
        task = progress.add_task("", total=limit, rate="")

        def show(so_far: "Produced") -> None:
            rate = f"{_rate(so_far):,.0f} events/s{', waits for more lines' if so_far.is_waiting else ''}"
            progress.update(task, completed=so_far.events - so_far.poisoned, rate=rate)

        yield show


class ProgressLines:
    """Prints a line when a followed file is first read to its end, and now and then as events are written."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._line_at = time.monotonic()
        self._shown = 0
        self._has_waited = False

    def show(self, so_far: "Produced") -> None:
        is_due = time.monotonic() >= self._line_at + LINE_SECONDS and so_far.events > self._shown
        if not is_due and (self._has_waited or not so_far.is_waiting):
            return
        self._line_at = time.monotonic()
        self._shown = so_far.events
        self._has_waited = self._has_waited or so_far.is_waiting
        waits = "; the file is read to its end, waits for more lines" if so_far.is_waiting else ""
        line = f"{so_far.events:,} events written, {_rate(so_far):,.0f} events/s{waits}"
        self._console.print(Text(line), soft_wrap=True)


def _rate(so_far: "Produced") -> float:
    return so_far.events / so_far.seconds if so_far.seconds else math.nan


def _goes_on(done: "Produced", file: Path | None) -> str:
    """How to continue with a file that was followed."""
    if done.read_to is None:
        return ""
    return f"; {file} is written up to byte {done.read_to}; continue with '--from-byte {done.read_to}'"


def _summary(done: "Produced", settings: "Settings") -> str:
    from ingest.opening import place_of

    where = place_of(settings.stream, settings.kafka)
    acknowledged = ", all acknowledged" if settings.stream.source == "kafka" else ""
    return (
        f"{done.events:,} events ({done.poisoned:,} bad on purpose) in {done.records:,} records to topic "
        f"{settings.stream.topic!r} {where}{acknowledged}: {done.seconds:.1f} s, ended by "
        f"{done.reason}"
    )


def _given(values: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in values.items() if value is not None}


def _milliseconds(text: str | None) -> str | None:
    return None if text is None else _amount("retention", text, UNITS_MS, "7d, 12h, 30m, forever")


def _bytes(text: str | None) -> str | None:
    return None if text is None else _amount("size", text, UNITS_BYTES, "10GiB, 512MiB, 1048576, forever")


def _amount(name: str, text: str, units: dict[str, int], examples: str) -> str:
    if text == "forever":
        return FOREVER
    found = re.fullmatch(r"(\d{1,18})\s*([A-Za-z]*)", text)
    if found is None or found[2] not in units:
        raise ConfigError(
            f"{name} {text!r} cannot be read; expected a number with a unit, as in {examples}; correct it"
        )
    return str(int(found[1]) * units[found[2]])


def _print_table(columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column == "topic" else "right")
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row))
    Console().print(table)


def _shown(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"

"""``freshet train``: one pass over a file in the processes of a run, which can be continued, served and exported."""

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from infra.base.errors import ConfigError, FreshetError
from infra.base.process import Stop, stop_on_signals, write_whole
from infra.cli import daemons
from infra.cli.first.init import EVENTS, WIDTH, EventsFile, Label, Time, show_guess
from infra.cli.options import PlacedRun, SettingsOptions, grouped, new_run, placed_settings
from infra.run.figures import count, number, ratio
from infra.run.folder import RUNS, as_path

if TYPE_CHECKING:
    from dispatch.progress.quality import Quality
    from dispatch.progress.status import Summary
    from infra.run.settings import Settings
    from ingest.filling import FilledTopic

TRAINED = "the file is trained"
"""Why such a run stops; it is not over, and other events can follow."""
SCHEMA = "schema.toml"


@dataclass(frozen=True)
class FileSchema:
    """The schema of a file, or how to guess it."""

    schema: Annotated[str | None, typer.Option(help="Schema of the events; guessed if not given.")] = None
    label: Label = None
    time: Time = None


@grouped
def train(
    file: EventsFile,
    compare: Annotated[
        bool, typer.Option("--compare/--no-compare", help="Compare with Vowpal Wabbit if it is installed.")
    ] = True,
    *,
    described: FileSchema,
    where: PlacedRun,
    given: SettingsOptions,
) -> None:
    """Train once over a file of events, and print how good the predictions were before each event was learnt from.

    The processes are those of 'freshet up', with one worker unless dispatch.workers is set. The run that it leaves can
    be continued, served and exported, with the commands that it prints; --run with the name of such a run trains that
    run further, on another file.

    Example: freshet train clicks.csv --schema schema.toml --run clicks
    """
    stop = stop_on_signals()
    from infra.run.checks import check_start

    settings, is_new = train_settings(file, described, where, given)
    check_start(settings)
    console = Console()
    filled, before, summary = train_file(file, settings, is_new, stop, console)
    if stop.reason != TRAINED:
        again = shlex.join(["freshet", "up", "--run", _name(settings)])
        console.print(Text(f"stopped by {stop.reason}; '{again}' trains the rest"), soft_wrap=True)
        raise typer.Exit(1)
    console.print(Text(_trained(filled, summary)), soft_wrap=True)
    others = other_qualities(file, settings, filled, summary, compare, stop) if not before else []
    console.print(quality_table(summary, others))
    print_commands(file, settings, console)


def train_settings(
    file: Path, described: FileSchema, where: PlacedRun, given: SettingsOptions
) -> "tuple[Settings, bool]":
    """The settings of the run, and whether it is new; the schema of a new run may be guessed."""
    from infra.run.defaults import up_settings
    from infra.run.resume import resumed

    chosen = placed_settings(given, where)
    named = new_run("train", where.name)
    folder = where.place or named["folder"]
    if described.schema is not None:
        chosen = [*chosen, f"stream.schema_name={described.schema}"]
        if described.label or described.time:
            raise ConfigError(
                "--schema is given, and --label or --time with it; expected them for a schema that is guessed; write "
                "them into [file] of the schema"
            )
    # one partition keeps the order of the file
    defaults = {**named, "stream": {"folder": folder / "log", "partitions": 1}, "dispatch": {"workers": 1}}
    settings = up_settings(given.config, chosen, defaults)
    if (before := resumed(settings, given.config, chosen)) is not None:
        return before, False
    if settings.stream.source != "log":
        raise ConfigError(
            f"stream.source is {settings.stream.source!r}; expected the embedded log, into which a file is written; "
            "use 'freshet up --kafka' and 'freshet produce' for Kafka"
        )
    if "schema_name" not in settings.stream.model_fields_set:
        settings = guessed(file, described, settings)
    return settings, True


def guessed(file: Path, described: FileSchema, settings: "Settings") -> "Settings":
    """The settings with a schema that is guessed, and written into the folder of the run."""
    from ingest.guess import guess_schema

    guess = guess_schema(file, described.label, described.time, EVENTS)
    show_guess(guess, Console(width=None if Console().is_terminal else WIDTH))
    path = settings.folder / SCHEMA
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, guess.toml)
    return settings.model_copy(update={"stream": settings.stream.model_copy(update={"schema_name": str(path)})})


def train_file(
    file: Path, settings: "Settings", is_new: bool, stop: Stop, console: Console
) -> "tuple[FilledTopic, int, Summary]":
    """Writes the file into the log of the run and trains it; returns what was written, how many samples the run had
    trained before, and the summary.
    """
    from dispatch.journal.history import JOURNAL, read_history
    from infra.base.telemetry import configure_logging
    from infra.cli.first.progress import FileProgress
    from infra.run.cluster import Extras, run_cluster
    from infra.run.folder import claim
    from ingest.filling import check_filled, fill_topic

    with claim(settings.folder):
        configure_logging("supervisor", settings.run, path=settings.folder / "supervisor.log")
        daemons.log_settings(settings)
        console.print(Text(f"run folder {settings.folder} (logs, journal, settings)"), soft_wrap=True)
        if is_new:
            remove_unfinished(settings)
        before = read_history(settings.folder / JOURNAL).samples
        with console.status("reading events") as reading:
            filled = fill_topic(
                file, settings.event_schema, settings.stream, stop, lambda so_far: reading.update(f"{so_far:,} events")
            )
        if stop.requested:
            raise FreshetError(f"stopped by {stop.reason} while {file} was read; nothing is trained; start again")
        if is_new:
            check_filled(file, filled)
        display = FileProgress(console, before, filled.good, filled.rejected, lambda: stop.request(TRAINED))
        extras = Extras(api=False, mark_at=None if before else max(1, filled.good // 2))
        return filled, before, run_cluster(settings, extras, stop, display)


def remove_unfinished(settings: "Settings") -> None:
    """Removes what a command that was interrupted while it read its file has written; the run has not begun."""
    topic = settings.folder / "log" / settings.stream.topic
    if any(topic.glob("*/mark")):  # a topic of ours, and nothing else
        shutil.rmtree(topic)


# ── what it prints ────────────────────────────────────────────────────────────────────────────────────────────────────
def other_qualities(
    file: Path, settings: "Settings", filled: "FilledTopic", summary: "Summary", compare: bool, stop: Stop
) -> "list[tuple[str, Quality, Quality]]":
    """What else predicts on the same events, each before it learns from them: whole file, and second half."""
    from benchmarks.others import learn_pass
    from benchmarks.vowpal import USUAL, learn_with, vowpal_version
    from infra.cli.first.constant import constant_quality
    from ingest.filling import read_samples_of
    from ingest.schema import without_crosses

    mark = summary.status.since_mark
    later = filled.good - (0 if mark is None else mark.quality.samples)
    whole, rest = constant_quality(filled.labels_B, later)
    found = [("a constant, the click rate so far", whole, rest)]
    if compare and (version := vowpal_version()) is not None:
        parts = read_samples_of(file, without_crosses(settings.event_schema))
        learnt = learn_pass(parts, later, learn_with(USUAL), Stop())
        found.append((f"Vowpal Wabbit {version}, {USUAL}", learnt.whole, learnt.later))
    return found


def quality_table(summary: "Summary", others: "list[tuple[str, Quality, Quality]]") -> Table:
    """Logloss and AUC over the whole file and its second half, beside those of others."""
    status = summary.status
    rest = status.since_mark.quality if status.since_mark is not None else None
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("before learning from each event")
    for name in ("logloss", "AUC", *(("2nd half", "AUC") if rest is not None else ())):
        table.add_column(name, justify="right", no_wrap=True)
    for name, whole, later in [("this model", status.quality, rest), *others]:
        cells = [quality for quality in (whole, later) if quality is not None]
        table.add_row(name, *(ratio(figure) for each in cells for figure in (each.logloss, each.auc)))
    return table


def print_commands(file: Path, settings: "Settings", console: Console) -> None:
    """Prints what can be done with the run, as commands that work."""
    from dispatch.checkpoints.survey import find_checkpoints
    from infra.base.storage import Storage
    from infra.run.folder import checkpoint_place

    run = _name(settings)
    storage = Storage.at(checkpoint_place(settings.folder, settings.checkpoints.url))
    newest = max(each.number for each in find_checkpoints(storage) if each.manifest is not None)
    commands = (
        ("predict a file", ["predict", str(file), "--run", run, "-o", "predictions.csv"]),
        ("serve predictions", ["serve", "--run", run]),
        ("a token for that", ["token", "create", "--name", "me", "--scope", "predict", "--run", run]),
        ("export the model", ["snapshots", "export", str(newest), f"{settings.run}-model", "--run", run]),
        ("train further events", ["up", "--run", run]),
    )
    for purpose, words in commands:
        console.print(Text(f"{purpose:>20}:  {shlex.join(['freshet', *words])}"), soft_wrap=True)


def _trained(filled: "FilledTopic", summary: "Summary") -> str:
    status = summary.status
    rate = f"{number(summary.samples_per_second)} events/s"
    line = f"trained {count(filled.good, 'event')} in {count(status.steps, 'step')}, {rate}"
    if not filled.rejected:
        return line
    kinds = ", ".join(f"{amount:,} {kind}" for kind, amount in filled.reasons.items())
    return f"{line}\n{count(filled.rejected, 'event')} rejected ({kinds}): {filled.first_reason}"


def _name(settings: "Settings") -> str:
    """The run as --run takes it."""
    return settings.folder.name if settings.folder.parent == RUNS else as_path(settings.folder)

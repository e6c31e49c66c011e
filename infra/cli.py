"""The ``freshet`` command."""

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer
from rich.console import Console

from benchmarks import commands
from infra import processes
from infra.errors import ConfigError, FreshetError
from infra.process import stop_on_signals, write_whole
from infra.processes import ConfigFile, Overrides, RunFolder

if TYPE_CHECKING:
    from infra.cluster import Extras, KnownBest

app = typer.Typer(
    name="freshet",
    help="Train click models continuously from device streams, on workers with uneven networks.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(commands.app, name="bench", rich_help_panel="Look around")
for process in (processes.dispatcher, processes.worker, processes.ps, processes.api):
    app.command(rich_help_panel="Processes")(process)

Samples = Annotated[int | None, typer.Option(help="Stop after exactly so many samples.", min=1, show_default=False)]
Folder = Annotated[Path | None, typer.Option(help="The run's folder; a new one by default.", show_default=False)]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the summary here.", show_default=False)]
Dataset = Literal["synthetic", "criteo", "avazu", "movielens"]

DEMO = ("stream.schema_name=synthetic", "dispatch.workers=4", "dispatch.links_gbit=5,5,0.5,0.5", "ps.shards=2")
"""the uneven links of the demonstration"""


@app.command(rich_help_panel="Start here")
def demo(
    samples: Samples = None,
    rate: Annotated[float, typer.Option(help="Clicks a second; 0 as fast as possible.", min=0)] = 5000,
    json_file: JsonFile = None,
    folder: Folder = None,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Run everything on this machine on a synthetic click stream, with a live display.

    Embedded log, click generator, dispatcher, 2 PS shards and 4 workers behind uneven links (5/5/0.5/0.5 Gbit/s), all
    real processes. Ctrl-C drains, prints a summary and exits.

    Example: freshet demo --samples 20000 --json summary.json
    """
    from infra.cluster import Extras, KnownBest

    place = folder or _new_folder("demo")
    chosen = [*DEMO, f"stream.folder={place / 'log'}", *(overrides or ())]
    produce = ["--seed-from-settings"] + (["--rate", str(rate)] if rate else [])
    _run("demo", place, config, chosen, Extras(produce=tuple(produce), samples=samples), json_file, KnownBest)


@app.command(rich_help_panel="Start here")
def up(
    samples: Samples = None,
    json_file: JsonFile = None,
    folder: Folder = None,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Run everything on this machine, supervised; events come from ``freshet produce``.

    Example: freshet up --set dispatch.workers=2 --set stream.schema_name=criteo
    """
    from infra.cluster import Extras

    _run("up", folder or _new_folder("up"), config, list(overrides or ()), Extras(samples=samples), json_file, None)


@app.command(rich_help_panel="Start here")
def produce(
    file: Annotated[Path | None, typer.Argument(help="File of the data set.", show_default=False)] = None,
    dataset: Annotated[Dataset, typer.Option(help="What to produce.")] = "synthetic",
    rate: Annotated[float | None, typer.Option(help="Events a second.", show_default=False)] = None,
    limit: Annotated[int | None, typer.Option(help="Stop after so many good events.", show_default=False)] = None,
    packed: Annotated[int, typer.Option(help="Samples per packed record; 0 writes JSON.")] = 0,
    poison: Annotated[float, typer.Option(help="Share of deliberately bad events of every kind, for drills.")] = 0.0,
    seed_from_settings: Annotated[bool, typer.Option("--seed-from-settings", hidden=True)] = False,
    seed: Annotated[int, typer.Option(help="Seed of the synthetic stream.")] = 0,
    config: ConfigFile = None,
    overrides: Overrides = None,
    run_folder: RunFolder = None,
) -> None:
    """Write events into the embedded log: a synthetic stream, or a Criteo, Avazu or MovieLens file.

    Example: freshet produce --dataset criteo train.txt --rate 5000
    """
    stop = processes.start()
    schema = [] if run_folder is not None else [f"stream.schema_name={dataset}"]
    settings = processes.choose_settings(config, [*schema, *(overrides or ())], run_folder)
    from ingest.main import run_producer

    processes.begin(settings, "produce")
    chosen = settings.seed if seed_from_settings else seed
    done = run_producer(settings.stream, stop, dataset, file, chosen, rate, limit, packed, poison)
    Console(stderr=True).print(
        f"{done.events:,} events ({done.poisoned:,} bad on purpose) in {done.records:,} records to topic "
        f"{settings.stream.topic!r} in {settings.stream.folder}: {done.seconds:.1f} s, ended by {done.reason}"
    )


@app.command(rich_help_panel="Look around")
def dead_letters(config: ConfigFile = None, overrides: Overrides = None, run_folder: RunFolder = None) -> None:
    """Print the rejected events, one JSON line each: partition, offset, index, reason, payload.

    Example: freshet dead-letters --run-folder runs/demo-20261115-021100
    """
    settings = processes.choose_settings(config, overrides, run_folder)
    from ingest.deadletter import read_dead_letters

    for letter in read_dead_letters(settings.stream.folder, settings.stream.dead_letter_topic):
        line = {**msgspec.structs.asdict(letter), "payload": letter.payload.decode(errors="backslashreplace")}
        typer.echo(msgspec.json.encode(line).decode())


@app.command(rich_help_panel="Look around")
def settings(
    defaults: Annotated[bool, typer.Option("--defaults", help="Every setting with its meaning, as TOML.")] = False,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Show the effective settings, or all defaults with their meaning.

    Example: freshet settings --defaults > freshet.toml
    """
    from infra.settings import describe_fields, load_settings
    from infra.telemetry import describe

    if defaults:
        typer.echo(describe_fields())
    else:
        effective = describe(load_settings(config, overrides or ()).model_dump(mode="json"))
        typer.echo(msgspec.json.format(msgspec.json.encode(effective)).decode())


@app.command(rich_help_panel="Look around")
def keys(
    folder: Annotated[Path, typer.Argument(help="Where to write them.")],
    workers: Annotated[list[str] | None, typer.Option("--worker", help="Name of a worker. Repeatable.")] = None,
) -> None:
    """Make CURVE keys for connections that leave this machine: one pair for servers, one for each worker.

    Example: freshet keys secrets --worker edge-1 --worker edge-2
    """
    import zmq

    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in ("server", *(workers or ())):
        secret_file = folder / f"{name}.secret"
        if secret_file.exists():
            raise ConfigError(f"{secret_file} exists; expected a folder without keys of {name!r}; move them away first")
        public, secret = zmq.curve_keypair()
        secret_file.touch(mode=0o600)
        secret_file.write_text(f"{public.decode()}\n{secret.decode()}\n")
        (folder / f"{name}.public").write_text(f"{public.decode()}\n")
    typer.echo(
        f"keys written to {folder}; set curve_folder to it, and give each worker its own .secret and server.public"
    )


def _run(
    kind: str,
    folder: Path,
    config: Path | None,
    overrides: list[str],
    extras: "Extras",
    json_file: Path | None,
    best: "type[KnownBest] | None",
) -> None:
    """Runs everything, shows it, and tells how it ended."""
    stop = stop_on_signals()
    from infra.cluster import run_cluster
    from infra.display import Display, render_summary
    from infra.settings import load_settings
    from infra.telemetry import configure_logging

    settings = load_settings(config, overrides, run=kind, folder=folder)
    folder.mkdir(parents=True, exist_ok=True)
    configure_logging("supervisor", settings.run, path=folder / "supervisor.log")
    console = Console()
    console.print(f"run folder [bold]{folder}[/] (logs, manifests, settings)")
    summary = run_cluster(settings, extras, stop, Display(console), best(settings.seed) if best else None)
    console.print(render_summary(summary))
    if json_file is not None:
        write_whole(json_file, msgspec.json.format(msgspec.json.encode(summary)).decode() + "\n")


def _new_folder(kind: str) -> Path:
    return Path("runs") / f"{kind}-{datetime.now():%Y%m%d-%H%M%S}"


def main() -> None:
    """Runs the command; an expected error is one line and status 2, never a traceback."""
    try:
        app()
    except FreshetError as error:
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"[bold red]freshet:[/] {error}", markup=True)
        sys.exit(2 if isinstance(error, ConfigError) else 1)


if __name__ == "__main__":
    main()

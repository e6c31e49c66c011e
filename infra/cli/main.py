"""The ``freshet`` command."""

import copy
import shlex
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import msgspec
import typer
import zmq
from rich.console import Console
from rich.text import Text
from typer.models import CommandInfo

from infra.base.errors import ConfigError, FreshetError
from infra.base.files import refusal
from infra.base.process import INTERRUPTED, Stop, check_output, stop_on_signals, stop_when_input_ends, write_whole
from infra.base.telemetry import code_version
from infra.cli import (
    agent,
    bench,
    chaos,
    check,
    checkpoints,
    commands,
    daemons,
    restore,
    snapshots,
    stream,
    token,
    verify,
)
from infra.cli.ahead import plan
from infra.cli.first import init, predict, train
from infra.cli.options import PlacedRun, RunOrArgument, SettingsOptions, grouped, new_run, placed_settings
from infra.cli.replay import LastStep, ReplayPlace, readable_stream, replay_run, show
from infra.cli.steer import alpha, audit, command, quality, runs, status, workers

if TYPE_CHECKING:
    from infra.run.cluster import Extras, KnownBest
    from infra.run.nodes.placing import RayNodes
    from infra.run.settings import Settings

app = typer.Typer(
    name="freshet",
    help="Train click models continuously from device streams, on workers with uneven networks.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"freshet {code_version()}")
        raise typer.Exit


@app.callback()
def freshet(
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Has no help text of its own: the help of the command is that of the application above."""


Samples = Annotated[int | None, typer.Option(help="Stop after exactly this many samples.", min=1, show_default=False)]
Kafka = Annotated[bool, typer.Option("--kafka", help="Send events through Kafka; starts a broker if needed.")]
Serves = Annotated[bool, typer.Option("--serve/--no-serve", help="Serve predictions of the run.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the summary here.", show_default=False)]
DEMO_RATE = 5000.0


@dataclass(frozen=True)
class Beside:
    """The servers that run next to the training."""

    is_alone: Annotated[bool, typer.Option("--no-api", help="Serve no control plane for the run.")] = False
    serves: Serves = True


@app.command(rich_help_panel="Start here")
@grouped
def demo(
    samples: Samples = None,
    rate: Annotated[float, typer.Option(help="Clicks per second; 0: as fast as possible.", min=0)] = DEMO_RATE,
    kafka: Kafka = False,
    json_file: JsonFile = None,
    serves: Serves = True,
    *,
    where: PlacedRun,
    given: SettingsOptions,
) -> None:
    """Run everything on this machine on a synthetic click stream, with a live display.

    Starts an embedded log, a click generator, the dispatcher, 2 shards and 4 workers behind uneven links (5/5/0.5/0.5
    Gbit/s), all as real processes. Ctrl-C drains, takes a checkpoint, prints a summary and exits; --run with the run's
    name resumes it.

    Example: freshet demo --samples 20000 --json summary.json
    """
    stop = stop_on_signals()
    from infra.run.checks import check_start
    from infra.run.cluster import Extras, KnownBest
    from infra.run.demo import demo_settings
    from infra.run.own_broker import with_brokers
    from infra.run.resume import resumed

    chosen = placed_settings(given, where, kafka)
    settings = demo_settings(given.config, chosen, new_run("demo", where.name), keep_all=not rate, own_topics=kafka)
    interrupted = resumed(settings, given.config, chosen)
    settings = interrupted or settings
    check_start(settings)
    produce = ["--seed-from-settings", *(["--rate", str(rate)] if rate else [])]
    share = settings.event_schema.keep_negatives  # fewer samples than events
    produce += ["--limit", str(ceil(samples / share))] if samples is not None else []
    settings, port = with_brokers(settings, is_asked=kafka and interrupted is None)
    extras = Extras(produce=tuple(produce), serve=serves, samples=samples, broker_port=port)
    again = ["demo", *(["--rate", f"{rate:g}"] if rate != DEMO_RATE else []), *([] if serves else ["--no-serve"])]
    _run(settings, extras, stop, json_file, again, KnownBest(settings.seed))


@app.command(rich_help_panel="Start here")
@grouped
def up(
    samples: Samples = None,
    kafka: Kafka = False,
    from_time: daemons.FromTime = None,
    from_offsets: daemons.FromOffsets = None,
    json_file: JsonFile = None,
    ray: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS|local", help="Run the processes on the nodes of this Ray cluster.", show_default=False
        ),
    ] = "",
    with_input: Annotated[
        bool, typer.Option("--stop-with-input", help="Stop when standard input ends, as when its writer dies.")
    ] = False,
    restores: Annotated[
        bool, typer.Option("--restore", help="First restore the run from dispatch.journal_topic, if it is there.")
    ] = False,
    *,
    where: PlacedRun,
    beside: Beside,
    given: SettingsOptions,
) -> None:
    """Run everything on this machine, supervised; events come from 'freshet produce'.

    With --kafka events come from the brokers that FRESHET_KAFKA names, or from one that is started for the run; missing
    topics are created. With links of different speeds (dispatch.links_gbit) the policy is joint:elastic unless
    dispatch.policy is set. --run resumes a run that was stopped or interrupted, with its own settings unless others are
    given. The run ends when --samples samples are trained.

    With --ray the processes are spread over the nodes of a Ray cluster, of which this machine must be one; 'local'
    starts a cluster of this machine alone.

    Example: freshet up --set dispatch.workers=2 --set stream.schema_name=criteo
    """
    stop = stop_on_signals()
    if with_input:
        stop_when_input_ends(stop)
    from infra.run.checks import check_start
    from infra.run.cluster import Extras
    from infra.run.defaults import up_settings
    from infra.run.own_broker import with_brokers
    from infra.run.restore import restore_if_there
    from infra.run.resume import check_not_started, resumed
    from ingest.streams.start import start_arguments

    start = start_arguments(from_time, from_offsets)
    chosen = placed_settings(given, where, kafka)
    settings = up_settings(given.config, chosen, new_run("up", where.name))
    if restores:
        restore_if_there(settings, given.config, chosen)
    if (interrupted := resumed(settings, given.config, chosen)) is not None:
        check_not_started(start)
        settings = interrupted
    with _nodes(ray) as nodes:
        settings = settings if nodes is None else nodes.adapt(settings)
        check_start(settings)
        settings, port = with_brokers(settings, is_asked=kafka and interrupted is None)
        extras = Extras(
            api=not beside.is_alone,
            serve=beside.serves,
            samples=samples,
            broker_port=port,
            start_arguments=start,
            nodes=nodes,
        )
        again = ["up", *(["--no-api"] if beside.is_alone else []), *([] if beside.serves else ["--no-serve"])]
        again += ["--ray", ray] if ray else []
        _run(settings, extras, stop, json_file, again)


def _nodes(ray: str) -> "AbstractContextManager[RayNodes | None]":
    """The nodes of the Ray cluster at this address; None without one."""
    from infra.run.nodes.placing import connected

    return connected(ray) if ray else nullcontext()


app.command(rich_help_panel="Start here")(stream.produce)
for own in (init.init, train.train, predict.predict):
    app.command(rich_help_panel="Your own events")(own)

app.add_typer(bench.app, name="bench", rich_help_panel="Inspect and measure")
for process in (
    daemons.dispatcher,
    daemons.worker,
    daemons.ps,
    daemons.api,
    daemons.serve,
    daemons.broker,
    agent.agent,
):
    app.command(rich_help_panel="Processes")(process)
app.command(rich_help_panel="Control a run")(status.status)
app.command(rich_help_panel="Control a run")(quality.quality)
for name, group in {"runs": runs.app, "alpha": alpha.app, "workers": workers.app}.items():
    app.add_typer(group, name=name, rich_help_panel="Control a run")
for change in (workers.pause, workers.resume, command.command, audit.audit):
    app.command(rich_help_panel="Control a run")(change)


@app.command(rich_help_panel="Inspect and measure")
@grouped
def replay(
    where: RunOrArgument,
    last_step: LastStep = None,
    json_file: JsonFile = None,
    *,
    place: ReplayPlace,
) -> None:
    """Train a run again from its journal, in separate processes, and compare the result with the run.

    Every step is trained as it was decided, so the model is the same, bit for bit. The run's folder is only read. A
    run's own Kafka broker is started meanwhile, unless the run is under way. Prints digests of all rows and dense
    weights, by which two replays can be compared, and exits with 1 if a step or the end differs. The dense weights are
    saved in the replay's own folder.

    Example: freshet replay --run up-20261115-021100 --to 500
    """
    stop = stop_on_signals()
    check_output(json_file)
    console = Console()
    folder = where.find()
    into = place.folder or new_run("replay")["folder"]
    with readable_stream(folder):
        done = replay_run(folder, into, last_step, stop, console)
    show(done, console, json_file)


app.command(rich_help_panel="Control a run")(restore.restore)
app.command(rich_help_panel="Inspect and measure")(verify.verify)
app.command(rich_help_panel="Inspect and measure")(chaos.chaos)
app.command(rich_help_panel="Inspect and measure")(check.check)
app.command(rich_help_panel="Inspect and measure")(plan.plan)
app.command(rich_help_panel="Inspect and measure")(stream.dead_letters)
app.add_typer(stream.topics, name="topics", rich_help_panel="Inspect and measure")
app.add_typer(checkpoints.app, name="checkpoints", rich_help_panel="Inspect and measure")
app.add_typer(checkpoints.app, name="cuts", hidden=True, callback=checkpoints.tell_new_name)
app.add_typer(snapshots.app, name="snapshots", rich_help_panel="Inspect and measure")
app.command(rich_help_panel="Control a run")(token.dashboard)
app.add_typer(token.app, name="token", rich_help_panel="Control a run")
for look in (commands.settings, commands.keys):
    app.command(rich_help_panel="Inspect and measure")(look)


def _run(
    settings: "Settings",
    extras: "Extras",
    stop: Stop,
    json_file: Path | None,
    again: list[str],
    best: "KnownBest | None" = None,
) -> None:
    """Runs all processes with a display; prints the summary and, if the run has not ended, the command that resumes it.

    again: the command that resumes the run, with the options that are not stored with it; the folder is appended
    """
    from infra.base.telemetry import configure_logging
    from infra.run.cluster import run_cluster
    from infra.run.display import Display, render_summary
    from infra.run.folder import as_path, claim, may_go_on

    with claim(settings.folder):
        check_output(json_file)
        configure_logging("supervisor", settings.run, path=settings.folder / "supervisor.log")
        daemons.log_settings(settings)
        console = Console()
        console.print(Text.assemble("run folder ", (str(settings.folder), "bold"), " (logs, journal, settings)"))
        if line := _stream_line(settings, extras):
            console.print(Text(line), soft_wrap=True)
        summary = run_cluster(settings, extras, stop, Display(console), best)
    console.print(render_summary(summary))
    if may_go_on(settings.folder):
        resume = shlex.join(["freshet", *again, "--run", as_path(settings.folder)])
        console.print(Text(f"stopped; '{resume}' resumes it"), soft_wrap=True)
    if json_file is not None:
        write_whole(json_file, msgspec.json.format(msgspec.json.encode(summary)).decode() + "\n")


def _stream_line(settings: "Settings", extras: "Extras") -> str:
    """Describes the run's topic and where reading begins; empty if that is not known yet, or for a new demo."""
    from dispatch.journal.history import JOURNAL, read_history
    from ingest.errors import IngestError
    from ingest.opening import describe_stream

    history = read_history(settings.folder / JOURNAL)
    if extras.broker_port is not None or (extras.produce is not None and history.begun is None):
        return ""
    given = dict(zip(extras.start_arguments[::2], extras.start_arguments[1::2], strict=True))
    try:
        return describe_stream(
            settings.stream,
            settings.kafka,
            resumed_at=history.positions if history.begun is not None else None,
            from_time=given.get("--from-time"),
            from_offsets=given.get("--from-offsets"),
        )
    except IngestError:  # the dispatcher meets the same error, and reports more
        return ""


def with_one_command(whole: typer.Typer, called: str) -> typer.Typer:
    """The application with one of its commands or groups; the whole one if none has this name.

    typer prepares all options of every command before it looks which is called: 40 ms of a processor at each start.
    """
    commands = [each for each in whole.registered_commands if _name_of(each) == called]
    groups = [each for each in whole.registered_groups if each.name == called]
    if not commands and not groups:
        return whole
    one = copy.copy(whole)
    one.registered_commands, one.registered_groups = commands, groups
    return one


def _name_of(command: CommandInfo) -> str:
    assert command.callback is not None
    return command.name or command.callback.__name__.replace("_", "-")


def run_command() -> None:
    """Runs the command; an expected error becomes one line and exit code 1 or 2, never a traceback."""
    try:
        with_one_command(app, called=sys.argv[1] if len(sys.argv) > 1 else "")()
    except SystemExit as ended:
        if ended.code == INTERRUPTED:  # how typer ends at Ctrl-C
            _fail("interrupted", INTERRUPTED)
        raise
    except ConfigError as error:
        _fail(str(error), 2)
    except FreshetError as error:
        _fail(str(error), 1)
    except OSError as error:
        _fail(refusal(error), 1)
    except zmq.ZMQError as error:
        _fail(f"a connection failed: {error}; expected endpoints and keys that fit; check them and try again", 1)


def _fail(message: str, status: int) -> NoReturn:
    line = Text.assemble(("freshet:", "bold red"), f" {message}")
    Console(stderr=True, soft_wrap=True, highlight=False).print(line)
    sys.exit(status)


if __name__ == "__main__":
    run_command()

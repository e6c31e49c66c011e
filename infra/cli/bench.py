"""``freshet bench``: every benchmark as a command. Results are printed and, with --json, written to a file."""

import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.text import Text

from benchmarks.report import report, write_json
from infra.base.errors import ConfigError, FreshetError, MissingProgram
from infra.base.process import check_output, stop_on_signals
from infra.cli.options import grouped

if TYPE_CHECKING:  # loads kernels
    from benchmarks.others import Other
    from benchmarks.simulated.sizes import Architecture
    from benchmarks.train import Experiment

app = typer.Typer(help="Benchmarks. Compare figures only within one run: machines differ and are noisy.")


def _checked_output(file: Path | None) -> Path | None:
    """Checks the path given by --json before anything is measured."""
    check_output(file)
    return file


Output = Annotated[
    Path | None, typer.Option("--json", help="Write the results here.", show_default=False, callback=_checked_output)
]

Format = Literal["criteo", "avazu", "movielens"]
KeyFormat = Literal["criteo", "avazu", "movielens", "synthetic"]
Eviction = Literal["emark", "lru", "lfu"]
Model = Literal["wdl", "deepfm", "dcn", "dlrm", "ncf"]
Optimizer = Literal["sgd", "adagrad", "rowwise_adagrad"]
NetworkKind = Literal["shaped", "namespaces"]
Reduce = Literal["hub", "ring"]
Device = Literal["cpu", "cuda"]
Utility = Literal["gradient", "frequency"]
PAPER_POLICIES = "laia,esd:0,esd:0.5:literal,esd:1"
LIVE_POLICIES = "laia,esd:1,joint:elastic"
OWN_CHOICE = "joint:elastic"
SCALE_POLICIES = "esd:1,joint,laia,joint:elastic"
SCALE_WORKERS = "8,16,32,64,128,256,512,1024"
WIDE = 140
"""Columns of wide tables, wherever they are printed."""
LIVE_CACHE_ROWS = 8192
"""Rows in the cache of a worker, if none are given."""
REGRET_CACHE_ROWS = 65_536
"""The same with --regret, where one worker alone must hold a whole batch."""


class Rival(StrEnum):
    """A program to compare with."""

    VW = "vw"
    RIVER = "river"


@app.command()
def step(
    batch: Annotated[int, typer.Option(help="Samples of a batch.", min=1)] = 1024,
    steps: Annotated[int, typer.Option(help="Steps of each run.", min=30)] = 90,
    file: Annotated[Path | None, typer.Option("--input", help="File to train on; synthetic clicks by default.")] = None,
    form: Annotated[Format, typer.Option("--format", help="Data set of the file.")] = "criteo",
    device: Annotated[Device, typer.Option(help="Device of the worker and of the plain loop.")] = "cpu",
    output: Output = None,
) -> None:
    """Measure the phases of a step, and the pipeline's time per step against a plain single-process torch loop on the
    same device.

    Example: freshet bench step --json step.json
    """
    from benchmarks.step import run_step

    with tempfile.TemporaryDirectory(prefix="freshet-") as folder:
        report([run_step(Path(folder), batch, steps, form, _existing(file), device)], output)


@app.command()
def decide(
    policies: Annotated[str, typer.Option(help="Policies, one after the other.")] = "esd:1,joint",
    workers: Annotated[str, typer.Option(help="Numbers of workers, e.g. 1,8.")] = "1,8",
    batch: Annotated[str, typer.Option(help="Samples of a step, e.g. 1024,4096.")] = "1024,4096",
    threads: Annotated[str, typer.Option(help="Threads that decide, e.g. 1,8; 0 is the default of a run.")] = "0",
    steps: Annotated[int, typer.Option(help="Decisions of each kind.", min=8)] = 40,
    keys: Annotated[
        int, typer.Option(help="Decide until so many keys are known, and report the longest pauses.", min=0)
    ] = 0,
    cache_rows: Annotated[int, typer.Option(help="Rows in the cache of each worker.", min=1)] = 1_000_000,
    file: Annotated[Path | None, typer.Option("--input", help="File of clicks; synthetic clicks by default.")] = None,
    form: Annotated[Format, typer.Option("--format", help="Data set of the file.")] = "criteo",
    output: Output = None,
) -> None:
    """Measure how long decisions take, and their parts: key lookup, policy and plan. With --keys, synthetic clicks
    bring new keys in every step, and the median, the 99.9th percentile and the worst time of a step are reported.

    Example: freshet bench decide --workers 1,8 --batch 1024,4096,16384 --json decide.json
    """
    from benchmarks.decide import decide_table, run_decide
    from benchmarks.growth import growth_table, run_growth
    from ingest.schema import load_schema

    try:
        counts, batches, among = ([int(part) for part in text.split(",")] for text in (workers, batch, threads))
    except ValueError:
        counts, batches, among = [0], [0], [0]
    if min(*counts, *batches) < 1 or min(among) < 0:
        raise ConfigError(
            f"decisions cannot be timed; got --workers {workers!r}, --batch {batch!r} and --threads {threads!r}; "
            "expected whole numbers above 0 with commas between, or 0 threads for the default; correct them"
        )
    chosen = policies.split(",")
    schema = load_schema(form)
    if keys:
        if file is not None:
            raise ConfigError(
                f"growth cannot be timed; got --keys {keys} and --input {file}; expected one of both, since growing "
                "keys are synthetic; omit --input"
            )
        grown = list(run_growth(chosen, counts, batches, schema.fields, keys, cache_rows, among))
        for result in grown:
            Console().print(growth_table(result))
        write_json(grown, output)
        return
    clicks = schema, form, steps, cache_rows, _existing(file)
    found = list(run_decide(chosen, counts, batches, *clicks, among))
    Console().print(decide_table(found))
    write_json(found, output)


@app.command()
def scale(
    policies: Annotated[str, typer.Option(help="Policies, one after the other.")] = SCALE_POLICIES,
    workers: Annotated[str, typer.Option(help="Numbers of workers, each measured in turn.")] = SCALE_WORKERS,
    batch: Annotated[int, typer.Option(help="Samples of a step for each worker.", min=1)] = 32,
    steps: Annotated[int, typer.Option(help="Steps of each run.", min=4)] = 40,
    shards: Annotated[int, typer.Option(help="Number of simulated shards.", min=1, max=64)] = 4,
    form: Annotated[KeyFormat, typer.Option("--format", help="Schema whose shape the clicks have.")] = "avazu",
    cache_rows: Annotated[int, typer.Option(help="Rows in the cache of a worker.", min=1)] = LIVE_CACHE_ROWS,
    step_ms: Annotated[float, typer.Option(help="Time of a worker for a step.", min=0)] = 5.0,
    sample_us: Annotated[float, typer.Option(help="Time of a worker for each sample.", min=0)] = 10.0,
    row_us: Annotated[float, typer.Option(help="Time of a shard for each row.", min=0)] = 1.0,
    plot: Annotated[Path | None, typer.Option(help="Draw the times here (PNG or SVG).", show_default=False)] = None,
    output: Output = None,
) -> None:
    """Measure how far one dispatcher goes: its real process, with simulated workers and shards that speak its protocol.

    Example: freshet bench scale --workers 8,32,128 --policies esd:1,laia --plot scale.svg --json scale.json
    """
    from benchmarks.crowd import ServiceTimes
    from benchmarks.scale import ScaleLoad, plot_scale, run_scale, scale_table

    try:
        counts = [int(part) for part in workers.split(",")]
    except ValueError as error:
        raise ConfigError(f"--workers is {workers!r}; expected numbers as in 8,64,512; correct it") from error
    if plot is not None:
        from benchmarks.simulated.plots import check_can_plot

        check_can_plot()
    load = ScaleLoad(form, batch, steps, shards, cache_rows, ServiceTimes(step_ms / 1e3, sample_us / 1e6, row_us / 1e6))
    results = []
    for result in run_scale(policies.split(","), counts, load):
        results.append(result)
        Console(stderr=True).print(Text(f"{result.policy}, {result.workers} workers: {result.loop:,.0f} ms a step"))
        write_json(results, output)
    Console(width=WIDE).print(scale_table(results))
    if plot is not None:
        plot_scale(results, plot)


@app.command()
def ps(
    repeat: Annotated[int, typer.Option(help="Number of pulls and pushes of each kind.", min=5)] = 50,
    output: Output = None,
) -> None:
    """Measure pulls and pushes of 3,000 rows against raw TCP in the same run.

    Example: freshet bench ps --json ps.json
    """
    from benchmarks.ps import run_ps

    report(run_ps(repeat), output)


@app.command()
def checkpoint(
    rows: Annotated[int, typer.Option(help="Rows of the shard.", min=1)] = 1_000_000,
    dim: Annotated[int, typer.Option(help="Embedding columns of a row.", min=1)] = 64,
    changed: Annotated[
        float, typer.Option(help="Share of the rows that changes before each checkpoint.", min=0, max=1)
    ] = 0.01,
    checkpoints: Annotated[
        int, typer.Option(help="Number of checkpoints after the first one, which holds every row.", min=1)
    ] = 7,
    folder: Annotated[
        Path | None, typer.Option(help="Where checkpoints are written; a temporary folder by default.")
    ] = None,
    output: Output = None,
) -> None:
    """Measure a shard's checkpoints from outside: its longest pause, bytes and time against a plain write, and the
    restore.

    Example: freshet bench checkpoint --rows 1000000 --dim 64 --changed 0.01 --json checkpoint.json
    """
    from benchmarks.durability.checkpoint import run_checkpoint

    with tempfile.TemporaryDirectory(prefix="freshet-", dir=folder) as place:
        report([run_checkpoint(Path(place), rows, dim, changed, checkpoints)], output)


@app.command()
def recovery(
    processes: Annotated[
        str, typer.Option(help="Kinds of process to kill and stop.")
    ] = "worker,ps,dispatcher,supervisor",
    stopped: Annotated[float, typer.Option(help="Seconds for which a process is stopped.", min=1)] = 20,
    rate: Annotated[float, typer.Option(help="Clicks per second.", min=1)] = 2000,
    folder: Annotated[Path | None, typer.Option(help="Folder for the runs; a temporary folder by default.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="One setting. Repeatable.")] = None,
    output: Output = None,
) -> None:
    """Measure the seconds without training after a kill at every seam of every process, and after a stop.

    Each run is verified.

    Example: freshet bench recovery --processes worker,ps --json recovery.json
    """
    from benchmarks.durability.recovery import cases, run_recovery

    chosen = list(cases(processes.split(","), stopped))
    with tempfile.TemporaryDirectory(prefix="freshet-") as place:
        tell = Console(stderr=True).print
        results = run_recovery(folder or Path(place), chosen, rate, overrides or (), lambda line: tell(Text(line)))
    report(results, output)
    if spoiled := [f"{result.process} {result.name}" for result in results if result.violations]:
        raise FreshetError(f"'freshet verify' found violations after {', '.join(spoiled)}; expected none; see --folder")


@app.command()
def serve(
    rows: Annotated[
        str, typer.Option(help="Sizes of the models to load, in rows; requests go to the smallest.")
    ] = "1000000",
    model: Annotated[Model, typer.Option(help="Model to serve.")] = "dcn",
    rate: Annotated[float, typer.Option(help="Requests per second in the windows.", min=1)] = 200,
    seconds: Annotated[float, typer.Option(help="Seconds per window.", min=1)] = 10,
    windows: Annotated[int, typer.Option(help="Number of windows with new snapshots, and as many without.", min=1)] = 3,
    changed: Annotated[int, typer.Option(help="Rows that each new snapshot changes.", min=1)] = 10_000,
    repeat: Annotated[int, typer.Option(help="Batches of each size, without HTTP.", min=5)] = 200,
    output: Output = None,
) -> None:
    """Measure predictions: latency and throughput against plain torch while new snapshots arrive, and memory per row.

    Example: freshet bench serve --rows 1000000,10000000 --json serve.json
    """
    from benchmarks.serving.serve import ServingLoad, run_serve

    try:
        sizes = tuple(int(size) for size in rows.split(","))
    except ValueError as error:
        raise ConfigError(f"--rows {rows!r} are no numbers; expected some as in 1000,20000; correct it") from error
    load = ServingLoad(sizes, model, rate, seconds, windows, changed, repeat)
    tell = Console(stderr=True).print
    with tempfile.TemporaryDirectory(prefix="freshet-") as folder:
        loaded, engine, http = run_serve(Path(folder), load, lambda line: tell(Text(line)))
    report(loaded, None)
    report([engine], None)
    report([http], None)
    write_json([*loaded, engine, http], output)


@app.command()
def api(
    rate: Annotated[float, typer.Option(help="Requests per second in every other window.", min=1)] = 200,
    seconds: Annotated[float, typer.Option(help="Seconds per window.", min=1)] = 5,
    windows: Annotated[int, typer.Option(help="Number of windows with load, and as many without.", min=1)] = 5,
    steps: Annotated[int, typer.Option(help="Steps of a past run in the database.", min=1)] = 1_000_000,
    cores: Annotated[str, typer.Option(help="Cores of the run and of the clients, as in 0,1:2; any by default.")] = ":",
    overrides: Annotated[list[str] | None, typer.Option("--set", help="One setting. Repeatable.")] = None,
    output: Output = None,
) -> None:
    """Measure status and history over REST while a run trains, and how much the requests slow training down.

    Requests come from a separate process. Steps per second are compared in alternating windows of one run: without
    requests, and with --rate requests per second.

    Example: freshet bench api --rate 200 --steps 1000000 --json api.json
    """
    from benchmarks.control.api import ApiLoad, run_api_load

    load = ApiLoad(rate, seconds, windows, steps, *_cores(cores))
    with tempfile.TemporaryDirectory(prefix="freshet-") as folder:
        tell = Console(stderr=True).print
        report([run_api_load(Path(folder), load, overrides or (), lambda line: tell(Text(line)))], output)


@app.command()
def siege(
    seconds: Annotated[float, typer.Option(help="Duration of the attack.", min=3)] = 30,
    idle: Annotated[int, typer.Option(help="Connections that send nothing.", min=0)] = 2000,
    slow: Annotated[int, typer.Option(help="Requests whose bodies arrive at one byte per second.", min=0)] = 300,
    flood: Annotated[float, typer.Option(help="Most requests per second from one token.", min=1)] = 3200,
    output: Output = None,
) -> None:
    """Measure the API under silent, slow and greedy clients: how it serves a well-behaved client, and its memory.

    The API has its default limits; some clients send bodies of 1 GB. Needs as many open files as connections.

    Example: freshet bench siege --seconds 30 --json siege.json
    """
    from benchmarks.control.siege import Siege, run_siege

    with tempfile.TemporaryDirectory(prefix="freshet-") as folder:
        tell = Console(stderr=True).print
        what = Siege(seconds, idle, slow, flood)
        report([run_siege(Path(folder), what, lambda line: tell(Text(line)))], output)


def _cores(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the cores of the run and of its clients; raises ConfigError."""
    of_run, _, of_clients = text.partition(":")
    try:
        run, clients = (tuple(map(int, filter(None, part.split(",")))) for part in (of_run, of_clients))
    except ValueError as error:
        raise ConfigError(f"--cores is {text!r}; expected numbers as in 0,1:2; correct it") from error
    return run, clients


@app.command()
def ingest(
    samples: Annotated[int, typer.Option(help="Samples to encode, decode, append and read.", min=1000)] = 20_000,
    kafka: Annotated[
        bool, typer.Option("--kafka", help="Read from a real broker, with both client libraries.")
    ] = False,
    output: Output = None,
) -> None:
    """Measure both codecs, the embedded log and the loader; with --kafka from a real broker to decoded batches.

    Example: freshet bench ingest --kafka --samples 100000 --json ingest.json
    """
    from benchmarks.ingest import run_ingest

    with tempfile.TemporaryDirectory(prefix="freshet-") as folder:
        report(_over_kafka(Path(folder), samples) if kafka else run_ingest(Path(folder), samples), output)


def _over_kafka(folder: Path, samples: int) -> Sequence[Any]:
    """Measures on the brokers that FRESHET_KAFKA names, or on one started for the measurement."""
    from benchmarks.kafka import run_kafka
    from infra.kafka.broker import Broker
    from infra.run.settings import load_settings, names_brokers

    config = load_settings().kafka
    if names_brokers():
        return run_kafka(config, samples)
    with Broker(folder / "broker") as broker:
        return run_kafka(config.model_copy(update={"servers": (broker.address,), "protocol": "PLAINTEXT"}), samples)


@app.command()
def quality(
    file: Annotated[Path, typer.Option("--input", help="File to train on, once.")],
    form: Annotated[Format, typer.Option("--format", help="Data set of the file.")],
    batch: Annotated[int, typer.Option(help="Samples of a batch.", min=1)] = 1024,
    workers: Annotated[int, typer.Option(help="Workers.", min=1, max=128)] = 4,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="One setting. Repeatable.")] = None,
    against: Annotated[
        list[Rival] | None,
        typer.Option(help="What to compare with: vw (package vowpalwabbit) or river, if it is installed. Repeatable."),
    ] = None,
    vw_options: Annotated[str | None, typer.Option(help="Its options; by default the best on the data set.")] = None,
    output: Output = None,
) -> None:
    """Train one pass over a file through the real pipeline: logloss and AUC, overall and of the second half.

    Example: freshet bench quality --input criteo.tsv.gz --format criteo --batch 1024 --workers 4 --json quality.json

    Example: freshet bench quality --input criteo.tsv.gz --format criteo --against vw --against river
    """
    stop = stop_on_signals()
    from benchmarks.others import run_other
    from benchmarks.quality import run_quality
    from infra.run.display import Display

    _existing(file)
    wanted = _others(against or (), form, vw_options)
    with tempfile.TemporaryDirectory(prefix="freshet-") as folder:
        display = Display(Console(stderr=True))
        result = run_quality(Path(folder), file, form, batch, workers, list(overrides or ()), stop, display)
    last = result.second_half.samples
    others = [run_other(other, file, form, last, stop) for other in wanted if not stop.requested]
    report([*others, result], output)


def _others(rivals: Sequence[Rival], form: str, vw_options: str | None) -> "list[Other]":
    """The programs that are installed; prints why another one is left out."""
    from benchmarks.river import open_river
    from benchmarks.vowpal import open_vowpal

    found = []
    for rival in rivals:
        try:
            found.append(open_vowpal(form, vw_options) if rival is Rival.VW else open_river())
        except MissingProgram as error:
            Console(stderr=True).print(Text(f"{rival} is left out: {error}"), soft_wrap=True)
    return found


@app.command()
def crosses(
    file: Annotated[Path, typer.Option("--input", help="File to train on, once for each choice of crosses.")],
    form: Annotated[Format, typer.Option("--format", help="Data set of the file.")],
    workers: Annotated[int, typer.Option(help="Workers.", min=1, max=128)] = 1,
    output: Output = None,
) -> None:
    """Search the first half of a file for crosses, then train with none, the built-in ones and those found.

    Example: freshet bench crosses --input avazu.csv.gz --format avazu --json crosses.json
    """
    stop = stop_on_signals()
    from benchmarks.crosses import run_crosses
    from infra.run.display import Display

    _existing(file)
    with tempfile.TemporaryDirectory(prefix="freshet-") as folder:
        display = Display(Console(stderr=True))
        suggested, results = run_crosses(Path(folder), file, form, workers, stop, display)
    report(results, output)
    Console().print(Text(suggested.line), soft_wrap=True)


@app.command()
def histories(
    file: Annotated[Path | None, typer.Option("--input", help="MovieLens; made-up visits by default.")] = None,
    samples: Annotated[int, typer.Option(help="Made-up samples.", min=1000)] = 60_000,
    batch: Annotated[int, typer.Option(help="Samples of a batch.", min=1)] = 256,
    output: Output = None,
) -> None:
    """Train a plain loop on users with a history: without it, with its mean, and with attention.

    Example: freshet bench histories --json histories.json
    """
    from benchmarks.histories import run_histories

    if file is not None:
        _existing(file)
    with tempfile.TemporaryDirectory(prefix="freshet-") as folder:
        report(run_histories(Path(folder), file, samples, batch), output)


@app.command()
def gate(
    file: Annotated[Path | None, typer.Option("--input", help="File of events; synthetic events by default.")] = None,
    form: Annotated[KeyFormat, typer.Option("--format", help="Data set of the file.")] = "synthetic",
    samples: Annotated[int, typer.Option(help="Most samples of the stream.", min=1)] = 180_000,
    snapshot_samples: Annotated[
        int, typer.Option("--snapshot-samples", "--version-samples", help="Samples between two snapshots.", min=1)
    ] = 1500,
    field: Annotated[str, typer.Option(help="Field that is missing in one of the cases.")] = "item",
    cases: Annotated[str, typer.Option(help="Cases, separated by commas; all by default.")] = "",
    server: Annotated[bool, typer.Option(help="Whether a server scores the newest samples.")] = True,
    output: Output = None,
) -> None:
    """Show which snapshots the gate holds back when labels or a field go wrong, and when the stream really changes.

    Example: freshet bench gate --input criteo.tsv.gz --format criteo --samples 100000 --field C14 --json gate.json
    """
    from benchmarks.serving.gate import CASES, GateLoad, run_gate

    load = GateLoad(form, _existing(file), samples, snapshot_samples, field, server)
    chosen = tuple(cases.split(",")) if cases else CASES
    report(run_gate(load, chosen, Console(stderr=True).print), output)


@dataclass(frozen=True)
class DispatchOptions:
    """The decisions that each policy makes."""

    file: Annotated[Path | None, typer.Option("--input", help="File of keys; synthetic keys by default.")] = None
    form: Annotated[KeyFormat, typer.Option("--format", help="Data set of the file.")] = "criteo"
    workers: Annotated[int, typer.Option(help="Workers.", min=1, max=128)] = 8
    batch: Annotated[int, typer.Option(help="Samples per worker and step.", min=1)] = 128
    cache_ratio: Annotated[float, typer.Option(help="Rows of a worker's cache, as a share of distinct keys.")] = 0.08
    links: Annotated[str, typer.Option(help="Gbit/s of each worker's link, or DOWN/UP; 1 for all if empty.")] = ""
    ignore_uplinks: Annotated[
        bool, typer.Option("--ignore-uplinks", help="Decide as if uplinks were as fast as downlinks.")
    ] = False
    policies: Annotated[str, typer.Option(help="Policies; the others are compared with the first.")] = PAPER_POLICIES
    dim: Annotated[int, typer.Option(help="Embedding columns of a row.", min=1)] = 512
    optimizer: Annotated[Optimizer, typer.Option(help="Optimizer of rows; its state is moved, too.")] = "adagrad"
    eviction: Annotated[Eviction, typer.Option(help="Which rows leave a full cache first.")] = "emark"
    warm_up: Annotated[int, typer.Option(help="First steps that are not counted.", min=0)] = 10
    deadline_ms: Annotated[float | None, typer.Option(help="Count decisions that take longer.", min=0)] = None
    samples: Annotated[int | None, typer.Option(help="Samples to use; all by default.", min=1)] = None
    write_behind: Annotated[
        float, typer.Option(help="Rows written back before a flush, as a share of those pulled.", min=0, max=1)
    ] = 0.0
    alphas: Annotated[str, typer.Option(help="Compare these shares of exact solving for each policy instead.")] = ""


@dataclass(frozen=True)
class DenseOptions:
    """The dense part of the model, and how it is moved."""

    model: Annotated[Model, typer.Option(help="Model whose dense part is counted.")] = "wdl"
    dense_bytes: Annotated[
        int | None, typer.Option(help="Bytes of the dense part instead of the model's; 0 omits it.", min=0)
    ] = None
    reduce: Annotated[
        Reduce, typer.Option(help="Sum through the PS, by workers with samples, or in a ring of all workers.")
    ] = "hub"

    def architecture(self, form: KeyFormat, optimizer: Optimizer, fields: int) -> "Architecture":
        from benchmarks.simulated.keys import dense_inputs
        from benchmarks.simulated.sizes import Architecture

        return Architecture(optimizer, self.model, fields, dense_inputs(form), self.dense_bytes, self.reduce)


@app.command()
@grouped
def dispatch(
    what: DispatchOptions,
    dense: DenseOptions,
    output: Output = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw cost by kind and link class into this file (PNG).")
    ] = None,
) -> None:
    """Show what each policy would move: runs the live directory and policies on a stream of keys, without training.

    Counts rows and the dense part of the model; --dense-bytes 0 compares policies by rows only. With --alphas, compares
    the time and the savings of several shares of exact solving.

    Example: freshet bench dispatch --input criteo.tsv.gz --format criteo --links 5,5,5,5,.5,.5,.5,.5 --json out.json
    """
    from benchmarks.simulated.curve import curve_table, parse_alphas, run_curve
    from benchmarks.simulated.dispatch import run_dispatch
    from benchmarks.simulated.keys import read_keys
    from benchmarks.simulated.plots import check_can_plot, plot_dispatch
    from benchmarks.simulated.tables import dispatch_table
    from benchmarks.simulated.workload import check_policies, make_workload, parse_links

    specs = check_policies(what.policies)
    speeds = parse_links(what.links, what.workers)
    alphas = parse_alphas(what.alphas, specs) if what.alphas else []
    if plot is not None:
        check_can_plot()
    keys_KF = read_keys(what.form, _existing(what.file), what.samples)
    sizes = dense.architecture(what.form, what.optimizer, keys_KF.shape[1]).sizes(what.dim)
    workload = make_workload(
        keys_KF=keys_KF,
        links_gbit=[link.down for link in speeds],
        uplinks_gbit=[link.up for link in speeds],
        batch=what.batch,
        cache_ratio=what.cache_ratio,
        eviction=what.eviction,
        warm_up=what.warm_up,
        deadline_ms=what.deadline_ms,
        sizes=sizes,
    )
    workload = replace(workload, write_behind=what.write_behind, knows_uplinks=not what.ignore_uplinks)
    if alphas:
        points = run_curve(workload, specs, alphas)
        Console().print(curve_table(points))
        write_json(points, output)
        return
    results = run_dispatch(workload, specs)
    Console().print(dispatch_table(results, workload))
    write_json(results, output)
    if plot is not None:
        plot_dispatch(results, workload, plot)


@dataclass(frozen=True)
class HotOptions:
    """The stream and the workers of which rows are replicated."""

    file: Annotated[Path | None, typer.Option("--input", help="File of keys; synthetic keys by default.")] = None
    form: Annotated[KeyFormat, typer.Option("--format", help="Data set of the file.")] = "criteo"
    workers: Annotated[int, typer.Option(help="Workers.", min=2, max=128)] = 8
    batch: Annotated[int, typer.Option(help="Samples per worker and step.", min=1)] = 128
    cache_ratio: Annotated[float, typer.Option(help="Rows of a worker's cache, as a share of distinct keys.")] = 0.08
    links: Annotated[str, typer.Option(help="Gbit/s of each worker's link; 1 for all if empty.")] = ""
    server: Annotated[float, typer.Option(help="Gbit/s of the link that all shards share; 0: wide.", min=0)] = 0.0
    dim: Annotated[int, typer.Option(help="Embedding columns of a row.", min=1)] = 128
    optimizer: Annotated[Optimizer, typer.Option(help="Optimizer of rows; its state is moved, too.")] = "adagrad"
    samples: Annotated[int | None, typer.Option(help="Samples to use; all by default.", min=1)] = None


@app.command()
@grouped
def hot(
    what: HotOptions,
    policy: Annotated[str, typer.Option(help="How samples are assigned: a policy without :hot.")] = "esd:1",
    sizes: Annotated[str, typer.Option(help="Sizes of the hot set, in rows.")] = "0,16,64,256,1024",
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the sizes into this file (SVG or PNG).")] = None,
    output: Output = None,
) -> None:
    """Show what hot sets of several sizes would save in a ring, and which size the rule of :hot chooses.

    The live directory decides a stream of keys, without training; rows alone are counted. The first half of the stream
    shows what rows cost, the second is measured.

    Example: freshet bench hot --input criteo.tsv.gz --format criteo --workers 8 --server 2 --json hot.json
    """
    from benchmarks.pictures import plot_hot
    from benchmarks.simulated.hot import HotWorkload, hot_table, parse_sizes, run_hot
    from benchmarks.simulated.keys import dense_inputs, read_keys
    from benchmarks.simulated.plots import check_can_plot
    from benchmarks.simulated.sizes import Architecture
    from benchmarks.simulated.workload import check_policies, even_links, make_workload, parse_links

    (spec,) = check_policies(policy)
    wanted = parse_sizes(sizes)
    speeds = parse_links(what.links, what.workers)
    if plot is not None:
        check_can_plot()
        check_output(plot)
    keys_KF = read_keys(what.form, _existing(what.file), what.samples)
    row = Architecture(what.optimizer, "wdl", keys_KF.shape[1], dense_inputs(what.form), 0, "ring").sizes(what.dim)
    workload = make_workload(keys_KF, even_links(speeds), what.batch, what.cache_ratio, sizes=row)
    case = HotWorkload(workload, spec, what.server)
    points = run_hot(case, wanted)
    Console().print(hot_table(points, case))
    write_json(points, output)
    if plot is not None:
        plot_hot(points, case.title, plot)


@dataclass(frozen=True)
class TrainOptions:
    """The training that every run does."""

    dim: Annotated[int, typer.Option(help="Embedding columns of a row.", min=1)] = 128
    file: Annotated[Path | None, typer.Option("--input", help="File to train on; synthetic clicks by default.")] = None
    form: Annotated[KeyFormat, typer.Option("--format", help="Data set of the file.")] = "avazu"
    workers: Annotated[int, typer.Option(help="Workers.", min=1, max=128)] = 4
    batch: Annotated[int, typer.Option(help="Samples per worker and step.", min=1)] = 128
    links: Annotated[
        str,
        typer.Option(
            help="Gbit/s of each worker's link, or DOWN/UP; if empty, 0.2 for half of them and 0.02 for the others."
        ),
    ] = ""
    cache_rows: Annotated[
        int | None,
        typer.Option(
            help=f"Rows of a worker's cache; {LIVE_CACHE_ROWS}, or {REGRET_CACHE_ROWS} where workers are chosen.", min=1
        ),
    ] = None
    model: Annotated[Model, typer.Option(help="Model, which decides the dense part.")] = "wdl"
    optimizer: Annotated[Optimizer, typer.Option(help="How a gradient changes a row.")] = "adagrad"
    seed: Annotated[int, typer.Option(help="Seed of events, start values and policies.", min=0)] = 0

    def experiment(self, steps: int, warm_up: int, cache_rows: int, overrides: Sequence[str]) -> "Experiment":
        """cache_rows: unless another number is given."""
        from benchmarks.simulated.workload import parse_links
        from benchmarks.train import Experiment, default_links

        rows = f"dispatch.cache_rows={self.cache_rows or cache_rows}", f"rows.dim={self.dim}"
        links = parse_links(self.links, self.workers) if self.links.strip() else default_links(self.workers)
        return Experiment(
            links_gbit=tuple(link.down for link in links),
            uplinks_gbit=tuple(link.up for link in links),
            batch=self.batch,
            steps=steps,
            warm_up=warm_up,
            seed=self.seed,
            dataset=self.form,
            file=_existing(self.file),
            overrides=(*rows, f"rows.optimizer={self.optimizer}", f"model.name={self.model}", *overrides),
        )


@dataclass(frozen=True)
class CompareOptions:
    """How runs are compared."""

    policies: Annotated[
        str, typer.Option(help=f"Policies; the others are compared with the first.  [default: {LIVE_POLICIES}]")
    ] = ""
    steps: Annotated[int, typer.Option(help="Steps of each run.", min=3)] = 100
    warm_up: Annotated[int, typer.Option(help="First steps that are not counted.", min=1)] = 30
    repeat: Annotated[int, typer.Option(help="Runs of each policy, in turn; medians are compared.", min=1)] = 1
    network: Annotated[NetworkKind, typer.Option(help="Slow links down in the workers, or in the kernel.")] = "shaped"
    pin: Annotated[
        int, typer.Option(help="Cores reserved for each worker, and as many threads; 0: none (Linux).", min=0)
    ] = 0
    regret: Annotated[
        bool, typer.Option("--regret", help="Compare an elastic policy, the first, with fixed sets of workers.")
    ] = False
    ring: Annotated[bool, typer.Option(help="With --regret: also compare fixed sets in a ring.")] = True

    def experiment(self, what: TrainOptions, overrides: Sequence[str]) -> "Experiment":
        cache_rows = REGRET_CACHE_ROWS if self.regret else LIVE_CACHE_ROWS
        experiment = what.experiment(self.steps, self.warm_up, cache_rows, overrides)
        return replace(experiment, network=self.network, own_cores=self.pin)


@app.command()
def memory(
    keys: Annotated[str, typer.Option(help="Known keys, several numbers separated by commas.")] = "1000000",
    workers: Annotated[str, typer.Option(help="Numbers of workers that the dispatcher knows.")] = "8,64",
    dim: Annotated[int, typer.Option(help="Embedding columns.", min=1)] = 16,
    optimizer: Annotated[Optimizer, typer.Option(help="Optimizer of rows.")] = "adagrad",
    endless: Annotated[
        int, typer.Option(help="Keys of the samples of an endless stream, half of them new; 0: none.", min=0)
    ] = 0,
    expire: Annotated[int, typer.Option(help="Steps after which its keys are forgotten.", min=3)] = 32,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="One setting of it. Repeatable.")] = None,
    output: Output = None,
) -> None:
    """Measure what a known key costs every process, against the formula; with --endless, a run on ever new keys.

    Example: freshet bench memory --keys 1000000,10000000 --endless 100000000 --json memory.json
    """
    from benchmarks.memory import measure_parts, run_endless
    from ps.config import RowConfig

    counts = parse_counts(keys, "--keys")
    rows = RowConfig(dim=dim, optimizer=optimizer)
    parts = measure_parts(counts, parse_counts(workers, "--workers"), rows)
    report(parts, None)
    results: list[Any] = list(parts)
    if endless:
        tell = Console(stderr=True).print
        with tempfile.TemporaryDirectory(prefix="freshet-") as folder:
            found = run_endless(Path(folder), endless, expire, overrides or (), lambda line: tell(Text(line)))
        report(found.processes, None)
        tell(Text(f"{found.sightings:,} keys of samples, {found.end_keys:,} known, {found.forgotten:,} forgotten"))
        results.append(found)
    write_json(results, output)


def parse_counts(text: str, option: str) -> tuple[int, ...]:
    """Positive numbers separated by commas; raises ConfigError."""
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1:
        raise ConfigError(f"{option} cannot be {text!r}; expected positive numbers separated by commas")
    return counts


def parse_factors(text: str, option: str) -> tuple[float, ...]:
    """The same, with fractions."""
    try:
        factors = tuple(float(part) for part in text.split(","))
    except ValueError:
        factors = ()
    if not factors or not all(0 < factor < math.inf for factor in factors):
        raise ConfigError(f"{option} cannot be {text!r}; expected positive numbers separated by commas")
    return factors


@dataclass(frozen=True)
class PruneOptions:
    """What is pruned, and how far."""

    file: Annotated[Path, typer.Option("--input", help="File to train on, once by each run.")]
    form: Annotated[Format, typer.Option("--format", help="Data set of the file.")]
    dim: Annotated[str, typer.Option(help="Numbers of embedding columns.")] = "16"
    chunks: Annotated[str, typer.Option(help="Numbers of chunks of a row: 1, 2, 4 or 8.")] = "2"
    keep: Annotated[
        str, typer.Option(help="Shares of the chunks of all keys that the budget has room for; 1: rows are whole.")
    ] = "1,.25,.1,.02,.01"
    columns: Annotated[str, typer.Option(help="Shares of the columns that all rows keep, in the same memory.")] = "1"
    batch: Annotated[int, typer.Option(help="Samples of a batch; a budget below its chunks is refused.", min=1)] = 1024
    workers: Annotated[int, typer.Option(help="Workers.", min=1, max=128)] = 1
    utility: Annotated[Utility, typer.Option(help="What keeps a chunk from being pruned.")] = "gradient"
    shape: Annotated[str, typer.Option(help="memory.prune_shape: dynamic, linear, power:A, or shares.")] = "dynamic"


@app.command()
@grouped
def prune(
    what: PruneOptions,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="One setting. Repeatable.")] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw memory against logloss into this file (SVG or PNG).")
    ] = None,
    output: Output = None,
) -> None:
    """Train one pass over a file with ever smaller budgets for chunks of rows: memory of the shards against quality.

    Each run is a real one. A round of pruning comes every 8,192 samples, and a use counts half after 70,656.

    Example: freshet bench prune --input criteo.tsv.gz --format criteo --batch 64 --keep 1,.1,.01 --json prune.json
    """
    stop = stop_on_signals()
    from benchmarks.pictures import plot_prune
    from benchmarks.prune import ALLOCATOR, PruneLoad, check_budgets, run_prune
    from benchmarks.simulated.plots import check_can_plot
    from benchmarks.tables import prune_table

    if plot is not None:
        check_can_plot()
        check_output(plot)
    _existing(what.file)
    load = PruneLoad(
        file=what.file,
        dataset=what.form,
        dims=parse_counts(what.dim, "--dim"),
        chunks=parse_counts(what.chunks, "--chunks"),
        keeps=_shares(what.keep, "--keep"),
        columns=_shares(what.columns, "--columns"),
        batch=what.batch,
        workers=what.workers,
        utility=what.utility,
        shape=what.shape,
        overrides=tuple(overrides or ()),
    )
    os.environ.update(ALLOCATOR)
    tell = Console(stderr=True).print
    with tempfile.TemporaryDirectory(prefix="freshet-") as folder:
        results = run_prune(Path(folder), load, stop, Console(stderr=True), lambda line: tell(Text(line)))
    Console().print(prune_table(results))
    write_json(results, output)
    if plot is not None:
        plot_prune(results, plot)
    check_budgets(results)


def _shares(text: str, option: str) -> tuple[float, ...]:
    """Shares above 0, up to 1, separated by commas; raises ConfigError."""
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        shares = ()
    if not shares or not all(0 < share <= 1 for share in shares):
        raise ConfigError(f"{option} cannot be {text!r}; expected shares above 0, up to 1, separated by commas")
    return shares


@app.command()
def freshness(
    rate: Annotated[float, typer.Option(help="Events a second.", min=1)] = 2000,
    seconds: Annotated[float, typer.Option(help="Seconds for which a client sends requests.", min=1)] = 60,
    window: Annotated[float, typer.Option(help="Seconds per window, with or without publishing.", min=1)] = 15,
    windows: Annotated[int, typer.Option(help="Number of windows of each kind.", min=1)] = 3,
    events: Annotated[
        int, typer.Option(help="Events written beforehand; more follow as needed.", min=100_000)
    ] = 2_000_000,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="One setting. Repeatable.")] = None,
    output: Output = None,
) -> None:
    """Measure how old a click is when a model that has learnt from it first answers a client; and what this costs.

    Steps per second are compared in alternating windows of one run: with publishing, and without any server.

    Example: freshet bench freshness --rate 2000 --json freshness.json
    """
    from benchmarks.serving.freshness import FreshnessLoad, run_freshness

    load = FreshnessLoad(rate, seconds, window, windows, events)
    tell = Console(stderr=True).print
    with tempfile.TemporaryDirectory(prefix="freshet-") as folder:
        report([run_freshness(Path(folder), load, overrides or (), lambda line: tell(Text(line)))], output)


@app.command()
@grouped
def train(
    what: TrainOptions,
    how: CompareOptions,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="One setting. Repeatable.")] = None,
    output: Output = None,
) -> None:
    """Compare policies in real runs: processes, slow links, the same events; steps per second, and what limits them.

    All workers share this machine's cores, so links are slowed down until transfers dominate a step, as at the edge:
    200 and 20 Mbit/s, ten to one as in the papers. If compute dominated, policies could not differ. With --network
    namespaces (Linux, root) all traffic of a worker crosses its link, including dense gradients and orders, and with
    --set ps.link_gbit=GBIT also the servers' own. A policy may have marks: laia@ring@2 sums dense gradients in a ring,
    on the first two workers only. With --regret the first policy, joint:elastic if none is given, is compared with what
    a user could have picked instead: the policies named after it, or one worker alone, the 2, 4, … fastest, and all,
    through the hub and in a ring.

    Example: freshet bench train --policies laia@ring,esd:1,joint:elastic --dim 128 --repeat 3 --json out.json
    """
    stop = stop_on_signals()
    from benchmarks.regret import fastest_first, regret_variants, run_regret
    from benchmarks.tables import regret_table, train_table
    from benchmarks.train import check_losses, parse_variants, run_train
    from infra.base.telemetry import configure_logging
    from infra.run.display import Display

    experiment = how.experiment(what, overrides or ())
    display = Display(Console(stderr=True))
    with tempfile.TemporaryDirectory(prefix="freshet-") as folder:
        configure_logging("supervisor", "bench-train", path=Path(folder) / "supervisor.log")
        if how.regret:
            candidates = regret_variants(how.policies or OWN_CHOICE, what.workers, how.ring)
            regret = run_regret(Path(folder), experiment, candidates, how.repeat, stop, display)
        else:
            variants = parse_variants(how.policies or LIVE_POLICIES)
            results = run_train(Path(folder), experiment, variants, how.repeat, stop, display)
    if how.regret:
        Console().print(regret_table(regret, fastest_first(experiment)))
        write_json([regret], output)
        check_losses([regret.own, *regret.fixed])
        return
    Console().print(train_table(results, experiment))
    write_json(results, output)
    check_losses(results)


@app.command("map")
@grouped
def map_runs(
    what: TrainOptions,
    speeds: Annotated[str, typer.Option(help="Factors of all links, several numbers separated by commas.")] = "0.2,1,5",
    sizes: Annotated[str, typer.Option(help="Factors of the batch, several whole numbers.")] = "1,4,16",
    steps: Annotated[int, typer.Option(help="Steps of each run.", min=3)] = 120,
    warm_up: Annotated[int, typer.Option(help="First steps that are not counted.", min=1)] = 60,
    repeat: Annotated[int, typer.Option(help="Runs of each candidate, in turn; medians are compared.", min=1)] = 1,
    pin: Annotated[
        int, typer.Option(help="Cores reserved for each worker, and as many threads; 0: none (Linux).", min=0)
    ] = 0,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="One setting. Repeatable.")] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw both maps into this file (SVG, PNG or PDF).")
    ] = None,
    output: Output = None,
) -> None:
    """Map when several workers pay, in real runs: one worker alone, several, and the own choice, at every combination
    of link speed and batch size; beside each what freshet plan expects.

    Example: freshet bench map --workers 2 --links 0.2,0.2 --dim 16 --speeds 0.5,2,8 --sizes 1,2,8 --plot map.png
    """
    stop = stop_on_signals()
    from benchmarks.train import check_losses
    from infra.base.telemetry import configure_logging
    from infra.plan.grid import Grid, checked_places, run_grid
    from infra.plan.picture import check_picture, plot_grid
    from infra.plan.report import grid_table
    from infra.run.display import Display

    check_picture(plot)
    grid = Grid(parse_factors(speeds, "--speeds"), parse_counts(sizes, "--sizes"))
    experiment = replace(what.experiment(steps, warm_up, REGRET_CACHE_ROWS, overrides or ()), own_cores=pin)
    tell = Console(stderr=True)
    places = []
    with tempfile.TemporaryDirectory(prefix="freshet-") as folder:
        experiments = checked_places(Path(folder), experiment, grid)
        configure_logging("supervisor", "bench-map", path=Path(folder) / "supervisor.log")
        for place in run_grid(Path(folder), experiments, repeat, stop, Display(tell)):
            places.append(place)
            line = f"{place.links_gbit[0]:g} Gbit/s, {place.batch:,} samples a step: several have {place.gain:.2f} "
            line += f"of the speed of one alone, the own choice has {place.regret.ratio:.2f} of the best"
            tell.print(line, soft_wrap=True)
    Console(width=WIDE).print(grid_table(places))
    write_json(places, output)
    if plot is not None:
        plot_grid(places, plot)
    for place in places:
        check_losses([place.own, *place.fixed])


@app.command()
@grouped
def trace(
    what: TrainOptions,
    policy: Annotated[str, typer.Option(help="A policy, with marks as in bench train.")] = "esd:1",
    steps: Annotated[int, typer.Option(help="Steps of the run.", min=4)] = 150,
    warm_up: Annotated[int, typer.Option(help="First steps, which are left out.", min=1)] = 50,
    pin: Annotated[
        int, typer.Option(help="Cores reserved for each worker, and as many threads; 0: none (Linux).", min=0)
    ] = 0,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="One setting. Repeatable.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw one step into this file (SVG or PNG).")] = None,
    spans: Annotated[
        Path | None, typer.Option("--spans", help="Write all spans to this file, for Perfetto or chrome://tracing.")
    ] = None,
    output: Output = None,
) -> None:
    """Show what every process does during a step of a real run: where its milliseconds go.

    Example: freshet bench trace --workers 4 --policy esd:1 --plot step.png --spans spans.json
    """
    stop = stop_on_signals()
    from benchmarks.simulated.plots import check_can_plot
    from benchmarks.trace import plot_trace, run_trace, span_table, span_times, write_trace
    from benchmarks.train import parse_variants
    from infra.base.telemetry import configure_logging
    from infra.run.display import Display

    if plot is not None:
        check_can_plot()
    for file in (plot, spans):
        if file is not None:
            check_output(file)
    experiment = replace(what.experiment(steps, warm_up, REGRET_CACHE_ROWS, overrides or ()), own_cores=pin)
    variants = parse_variants(policy)
    if len(variants) > 1:
        raise ConfigError(f"one policy can be traced at a time; got {policy}; expected no comma; correct --policy")
    with tempfile.TemporaryDirectory(prefix="freshet-") as folder:
        configure_logging("supervisor", "bench-trace", path=Path(folder) / "supervisor.log")
        processes = run_trace(Path(folder), experiment, variants[0], stop, Display(Console(stderr=True)))
    times = span_times(processes)
    Console().print(span_table(times))
    write_json(times, output)
    if spans is not None:
        write_trace(processes, spans)
    if plot is not None:
        plot_trace(processes, plot)


@app.command()
@grouped
def change(
    what: TrainOptions,
    changes: Annotated[
        list[str],
        typer.Option("--change", help="link-WORKER=GBIT@STEP, processor-WORKER=SHARE@STEP or join-WORKER@STEP."),
    ],
    policy: Annotated[str, typer.Option(help="An elastic policy.")] = OWN_CHOICE,
    steps: Annotated[int, typer.Option(help="Steps of the run.", min=3)] = 900,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="One setting. Repeatable.")] = None,
    output: Output = None,
) -> None:
    """Change links, processors and members while a run trains, and measure how soon its choice of workers follows.

    Every worker has a network namespace (Linux, root). The run is not told the speed of its links, nor what changes.
    Workers that join are the last ones: with --workers 4 and --change join-3@300 the run starts with three.

    Example: freshet bench change --steps 900 --change link-0=0.02@300 --change processor-1=0.1@600 --json change.json
    """
    stop = stop_on_signals()
    from benchmarks.change import own_choice, parse_changes, run_change
    from benchmarks.tables import change_table
    from infra.base.telemetry import configure_logging

    experiment = what.experiment(steps, 1, REGRET_CACHE_ROWS, overrides or ())
    parsed = parse_changes(changes, experiment)
    own = own_choice(policy)
    with tempfile.TemporaryDirectory(prefix="freshet-") as folder:
        configure_logging("supervisor", "bench-change", path=Path(folder) / "supervisor.log")
        phases = run_change(Path(folder), experiment, own, parsed, stop, Console(stderr=True))
    Console().print(change_table(phases, experiment))
    write_json(phases, output)


@app.command()
@grouped
def paper(
    dense: DenseOptions,
    file: Annotated[Path | None, typer.Option("--input", help="File of keys; synthetic keys by default.")] = None,
    form: Annotated[KeyFormat, typer.Option("--format", help="Data set of the file.")] = "criteo",
    policies: Annotated[str, typer.Option(help="Policies; the others are compared with the first.")] = PAPER_POLICIES,
    optimizer: Annotated[Optimizer, typer.Option(help="Optimizer of rows; its state is moved, too.")] = "sgd",
    samples: Annotated[int | None, typer.Option(help="Samples to use; all by default.", min=1)] = None,
    output: Output = None,
) -> None:
    """Repeat the studies of the papers: ESD's of batch, cache, embedding size, workers and links; Herald's breakdown.

    The papers' costs count rows only, as with --dense-bytes 0; their times include the dense part and compute.

    Example: freshet bench paper --input criteo.tsv.gz --format criteo --json paper.json
    """
    from benchmarks.simulated.keys import read_keys
    from benchmarks.simulated.paper import run_paper
    from benchmarks.simulated.tables import paper_tables
    from benchmarks.simulated.workload import check_policies

    specs = check_policies(policies)
    keys_KF = read_keys(form, _existing(file), samples)
    settings = run_paper(keys_KF, specs, dense.architecture(form, optimizer, keys_KF.shape[1]))
    for table in paper_tables(settings):
        Console().print(table)
    write_json(settings, output)


@app.command()
def solver(
    workers: Annotated[int, typer.Option(help="Workers.", min=1, max=128)] = 8,
    batch: Annotated[str, typer.Option(help="Samples per worker; several sizes are measured in turn.")] = "128,1024",
    backend: Annotated[str, typer.Option(help="Solvers to compare.")] = "cpu,cuda,hungarian_cuda,scipy,pot",
    repeat: Annotated[int, typer.Option(help="Timed repeats; only one if it takes more than a second.", min=1)] = 20,
    output: Output = None,
) -> None:
    """Compare the exact solvers on the same batches, including the cost matrix: equal optima, and times.

    Example: freshet bench solver --workers 8 --batch 128,1024 --backend cpu,cuda --json solver.json
    """
    from benchmarks.solver import run_solver

    try:
        batches = [int(size) for size in batch.split(",")]
    except ValueError as error:
        raise ConfigError(f"batches of {batch!r}; expected whole numbers with commas; check --batch") from error
    results = run_solver(workers, batches, backend.split(","), repeat)
    report(results, output)
    different = [f"{result.backend} at {result.batch}" for result in results if result.equal is False]
    if different:
        raise FreshetError(
            f"optima differ: {', '.join(different)} found more than the least cost; expected equal costs; see the table"
        )


def _existing(file: Path | None) -> Path | None:
    if file is not None and not file.is_file():
        raise ConfigError(f"no file at {file}; expected a data set; check --input")
    return file

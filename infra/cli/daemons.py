"""The processes as commands: each turns settings into one call of its package's ``main``.

Signal handlers are installed before anything slow is imported, so that SIGTERM is always a request to stop and exit
with code 0.
"""

import platform
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import structlog
import typer
import zmq
from zmq.utils import z85

from infra.base.config import check_names
from infra.base.errors import ConfigError
from infra.base.faults import arm
from infra.base.link import PAYLOAD_SHARE, Link
from infra.base.process import Stop, end_with_parent, is_supervised, show_life, stop_on_signals, write_whole
from infra.base.telemetry import Meter, code_version, configure_logging, describe, start_metrics
from infra.base.trace import FOLDER as TRACES
from infra.base.trace import keep_spans
from infra.base.wire import Curve, load_curve
from infra.cli.options import RunOptions, grouped
from infra.run.agreement import agreement_of
from infra.run.dense_part import STATE_COPIES, dense_part, heavy_warning
from infra.run.folder import checkpoint_place
from infra.run.settings import STORED, Settings, store_settings, taken_cores

if TYPE_CHECKING:
    from dispatch.config import DispatchConfig
    from dispatch.job import Publishing
    from ingest.batches.forked import ForkedLoader
    from ingest.streams.source import Source

Name = Annotated[str, typer.Option(help="Name of this process; unique in its run.", callback=check_names)]
FromTime = Annotated[
    str | None,
    typer.Option(
        help="Begin with events that arrived at this time (ISO 8601 or unix seconds) or later.", show_default=False
    ),
]
FromOffsets = Annotated[
    str | None, typer.Option(help="Begin at these records, as in 0:123,1:77 (partition:offset).", show_default=False)
]
DispatcherEndpoint = Annotated[str, typer.Option(help="Endpoint of the dispatcher.", show_default=False)]


@dataclass(frozen=True)
class DispatcherOptions:
    """Which part of the stream a dispatcher trains."""

    samples: Annotated[int | None, typer.Option(help="Stop after exactly this many samples.", min=1)] = None
    stop_at_end: Annotated[bool, typer.Option("--stop-at-end", help="Stop at the current end of the stream.")] = False
    mark_at: Annotated[int | None, typer.Option(help="Also measure quality after this many samples.", min=1)] = None
    from_time: FromTime = None
    from_offsets: FromOffsets = None
    golden: Annotated[Path | None, typer.Option(hidden=True)] = None
    """Train the steps of the run in this folder again, and nothing else."""
    last_step: Annotated[int | None, typer.Option(hidden=True)] = None


@grouped
def ps(
    shard: Annotated[int, typer.Option(help="Number of this shard, from 0.")],
    name: Name = "ps",
    endpoint: Annotated[str, typer.Option(help="Where to listen.", show_default=False)] = "",
    dispatcher: DispatcherEndpoint = "",
    *,
    given: RunOptions,
) -> None:
    """Serve one shard of the parameter server.

    Example: freshet ps --config freshet.toml --shard 0 --endpoint tcp://10.0.0.5:5600 --dispatcher tcp://10.0.0.4:5500
    """
    stop = start()
    settings = given.load()
    where = endpoint or _at(settings.ps.endpoints, shard, "ps.endpoints")
    from ps.config import DenseRule
    from ps.main import ShardJob, run_shard

    job = ShardJob(
        number=shard,
        config=settings.ps,
        rows=settings.scaled_rows,
        run=settings.run,
        seed=settings.seed,
        endpoint=where,
        dispatcher_endpoint=dispatcher or settings.dispatch.endpoint,
        dense=DenseRule(settings.model.dense_optimizer, settings.model.dense_rate),
        curve=curve_of(settings, "server"),
        agreement=agreement_of(settings),
        storage=checkpoint_place(settings.folder, settings.checkpoints.url),
        checkpoints=settings.checkpoints,
        publisher_endpoint=_publisher_at(settings, shard),
        is_supervised=is_supervised(),
        waits_until_heard=not is_supervised(),
    )
    announce = begin(settings, name)
    report_compilation(settings, name)
    run_shard(job, stop, announce, Meter())


@grouped
def dispatcher(
    name: Name = "dispatcher",
    endpoint: Annotated[str, typer.Option(help="Where to listen.", show_default=False)] = "",
    *,
    asked: DispatcherOptions,
    given: RunOptions,
) -> None:
    """Form batches, decide which worker trains which sample, and order the steps.

    Example: freshet dispatcher --config freshet.toml --endpoint tcp://10.0.0.4:5500
    """
    stop = start()
    settings = given.load()
    from dispatch.job import DenseJob, DispatchJob, Golden
    from dispatch.main import run_dispatcher
    from dispatch.placement.assign.backend import has_gpu
    from infra.run.restore import journal_copy
    from ingest.letters.letter import NoLetters
    from ingest.opening import check_source, open_letters, open_source
    from ingest.streams.start import start_positions

    stream = settings.stream
    loader = None if asked.golden is not None else fork_loader(settings)
    check_source(stream, settings.kafka, settings.event_schema)
    source = open_source(stream, settings.kafka)
    kept = open_letters(stream, settings.kafka, settings.run) if asked.golden is None else NoLetters()
    trainer = settings.trainer
    copies = STATE_COPIES[settings.model.dense_optimizer]
    job = DispatchJob(
        run=settings.run,
        seed=settings.seed,
        folder=settings.folder,
        stream=stream,
        dispatch=_dispatch_at(settings, endpoint),
        schema=settings.event_schema,
        rows=settings.scaled_rows,
        memory=settings.memory,
        shards=settings.ps.shards,
        server_gbit=settings.ps.link_gbit,
        storage=checkpoint_place(settings.folder, settings.checkpoints.url),
        checkpoints=settings.checkpoints,
        publishing=_publishing(settings),
        quality=settings.quality,
        dense=DenseJob(dense_part(settings).bytes, copies, trainer.reduce, trainer.unencrypted_reduce),
        samples=asked.samples,
        stop_at_end=asked.stop_at_end,
        mark_at=asked.mark_at,
        curve=curve_of(settings, "server"),
        agreement=agreement_of(settings),
        start=start_positions(source, asked.from_time, asked.from_offsets),
        write_behind=settings.checkpoints.write_behind if settings.checkpoints.seconds else 0.0,
        taken_cores=taken_cores(settings, has_gpu),
        golden=Golden(asked.golden, asked.last_step) if asked.golden is not None else None,
        journal_copy=journal_copy(settings) if asked.golden is None else None,
    )
    with closing(source), closing(kept) as letters, over_at_once():
        on_ready = begin_dispatcher(settings, name, None if given.named else job.dispatch)
        run_dispatcher(job, source, letters, stop, on_ready, Meter(), None if loader is None else loader.begin)


def fork_loader(settings: Settings) -> "ForkedLoader":
    """The process that loads. Called while this one has one thread, and nothing open that it could share."""
    from ingest.batches.forked import ForkedLoader
    from ingest.opening import open_source

    stream = settings.stream

    def opening() -> "Source":
        configure_logging("loader", settings.run, settings.telemetry.log_format, settings.telemetry.log_level)
        return open_source(stream, settings.kafka)

    title = f"freshet loader --run {settings.folder.resolve()}"
    return ForkedLoader(opening, settings.event_schema, stream.batch, stream.prefetch, title)


def begin_dispatcher(settings: Settings, name: str, stored: "DispatchConfig | None") -> Callable[..., None]:
    """Like ``begin``, but a dispatcher that was started by hand also stores its settings once it has locked its folder.

    The API, servers and commands find the run by these settings.

    stored: the configuration that it listens with; None: its settings are stored already
    """
    announce = begin(settings, name)
    report_compilation(settings, name)

    def on_ready(*endpoints: str) -> None:
        if stored is not None:
            keys = (
                settings.curve_folder and settings.curve_folder.absolute()
            )  # other processes may start in another directory
            store_settings(settings.model_copy(update={"dispatch": stored, "curve_folder": keys}))
        announce("\n".join(endpoints))

    return on_ready


@contextmanager
def over_at_once() -> Iterator[None]:
    """Handles a needless restart: if the dispatcher died after its last record, the run has ended already."""
    from dispatch.errors import RunEnded

    try:
        yield
    except RunEnded as error:
        if not is_supervised():
            raise
        structlog.get_logger().info("nothing is left to do", reason=str(error))


@grouped
def broker(
    name: Name = "broker",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for a free one.", min=0, max=65535)] = 0,
    *,
    given: RunOptions,
) -> None:
    """Run one Apache Kafka broker on this machine, with the topics of a run; needs Java 17 and, the first time, Maven.

    Its data is in the run's folder, below broker/. It listens on this machine only.

    Example: freshet broker --port 9092 --set folder=runs/broker
    """
    stop = start()
    settings = given.load()
    from infra.kafka.broker import Broker
    from ingest.kafka.topics import ensure_topics

    announce = begin(settings, name)
    with Broker(settings.folder / "broker", port=port) as running:
        local = settings.kafka.model_copy(update={"servers": (running.address,)})
        ensure_topics(local, settings.stream)
        announce(running.address)
        structlog.get_logger().info("ready", address=running.address)
        while not stop.wait(0.5):
            running.check()


@grouped
def worker(
    dispatcher: DispatcherEndpoint = "",
    name: Name = "worker",
    link: Annotated[float | None, typer.Option(help="Speed of this worker's link in Gbit/s.")] = None,
    uplink: Annotated[
        float | None, typer.Option(help="Speed of what it sends in Gbit/s; by default that of its link.")
    ] = None,
    *,
    given: RunOptions,
) -> None:
    """Run a worker: keep a cache of rows, and execute the dispatcher's orders.

    Example: freshet worker --config freshet.toml --name edge-7 --dispatcher tcp://10.0.0.4:5500
    """
    stop = start()
    settings = given.load()
    where = dispatcher or settings.dispatch.endpoint
    reported = Link(link, is_shaped=settings.trainer.shape_link, payload_share=PAYLOAD_SHARE, uplink_gbit=uplink)
    from trainer.errors import Removed
    from trainer.job import WorkerJob
    from trainer.main import run_worker

    schema = settings.event_schema
    job = WorkerJob(
        name=name,
        run=settings.run,
        seed=settings.seed,
        folder=settings.folder,
        dispatcher_endpoint=where,
        rows=settings.scaled_rows,
        model=settings.model,
        trainer=settings.trainer,
        fields=schema.fields,
        dense=schema.dense,
        batch=settings.stream.batch,
        crosses=len(schema.crosses),
        pools=schema.pools,
        labels=max(1, len(schema.labels)),
        link=reported,
        ends_itself=True,
        is_supervised=is_supervised(),
        waits_until_admitted=not is_supervised(),
        curve=curve_of(settings, name),
        agreement=agreement_of(settings),
    )
    announce = begin(settings, name)
    log_dense_part(settings)
    try:
        run_worker(job, stop, lambda: announce(where), Meter())
    except Removed as removed:
        structlog.get_logger().warning("leaves", reason=str(removed))


@grouped
def api(
    name: Name = "api",
    runs: Annotated[Path | None, typer.Option(help="Folder with the runs; short for --set api.runs=.")] = None,
    *,
    given: RunOptions,
) -> None:
    """Serve the control plane over REST: status and history of runs, commands to them, events from devices.

    Every request needs a token, which 'freshet token create' creates.

    Example: freshet api --runs runs --set api.port=8080
    """
    stop = start()
    settings = given.load()
    from api.job import ApiJob
    from api.main import run_api
    from infra.base.run_folder import link_file
    from infra.web.store.place import database_url, write_database
    from ingest.kafka.config import SECRETS

    where = runs or settings.api.runs or settings.folder
    if not given.named:  # it belongs to no run
        settings = settings.model_copy(update={"folder": where})
    secrets = {secret: value for secret in SECRETS if (value := getattr(settings.kafka, secret)) is not None}
    job = ApiJob(
        config=settings.api,
        runs=where,
        database=database_url(settings.api.database, where),
        kafka_secrets=secrets,
        link_file=link_file(settings.folder) if is_supervised() else None,
        folder=settings.folder,
    )
    announce = begin(settings, name)
    write_database(settings.folder, name, job.database)
    run_api(job, stop, announce, Meter())


@grouped
def serve(
    name: Name = "serve",
    port: Annotated[int | None, typer.Option(help="Short for --set serving.port=.", min=0, max=65535)] = None,
    shares_port: Annotated[
        bool, typer.Option("--share-port", help="Share the port with other servers of the run.")
    ] = False,
    *,
    given: RunOptions,
) -> None:
    """Serve predictions of a run's newest good snapshot over REST.

    Every request needs a token, which 'freshet token create' creates.

    Example: freshet serve --run up-20261115-021100 --port 8100
    """
    stop = start()
    settings = given.or_only_run("folder", "checkpoints").load()
    from infra.web.store.place import database_url, write_database
    from ingest.opening import open_source
    from serving.job import ServingJob
    from serving.main import run_serving
    from serving.spec import spec_of

    config = settings.serving if port is None else settings.serving.model_copy(update={"port": port})
    schema = settings.event_schema
    job = ServingJob(
        config=config,
        web=config.web(settings.api.web),
        database=database_url(settings.api.database, settings.api.runs or settings.folder),
        storage=checkpoint_place(settings.folder, settings.checkpoints.url),
        schema=schema,
        spec=spec_of(config, settings.run, settings.seed, settings.scaled_rows, settings.model, schema),
        open_source=partial(open_source, settings.stream, settings.kafka),
        shares_port=shares_port,
        name=name,
        folder=settings.folder,
        feed_endpoint=settings.dispatch.feed_endpoint,
        curve=curve_of(settings, "server"),
    )
    announce = begin(settings, name)
    report_compilation(settings, name)
    write_database(settings.folder, name, job.database)
    run_serving(job, stop, announce, Meter())


# ── shared by the commands ────────────────────────────────────────────────────────────────────────────────────────────
def start() -> Stop:
    """Installs signal handlers; the first thing that a process does."""
    stop = stop_on_signals()
    end_with_parent()
    return stop


def begin(settings: Settings, name: str, logs_settings: bool = True) -> Callable[[str], None]:
    """Starts logs and metrics; returns a function that the process calls with its endpoint once it is ready.

    Check arguments before calling this: their errors are then the only line of output.

    logs_settings: False if a person reads the output, who has just given the few settings that matter.
    """
    arm(name, settings.folder)
    keep_spans(settings.folder / TRACES / f"{name}.json", settings.telemetry.trace_spans)
    configure_logging(name, settings.run, settings.telemetry.log_format, settings.telemetry.log_level)
    _tell_build()
    host = settings.telemetry.metrics_host
    port = start_metrics(settings.telemetry.metrics_port, host)
    metrics = f"http://[{host}]:{port}/metrics" if ":" in host else f"http://{host}:{port}/metrics"
    if is_supervised():  # the supervisor has logged and stored them
        show_life(settings.folder / "endpoints" / f"{name}.alive")
        structlog.get_logger().info("settings", stored=str(settings.folder / STORED))
    elif logs_settings:
        log_settings(settings)
    structlog.get_logger().info("serving metrics", address=metrics)

    def announce(endpoint: str) -> None:
        path = settings.folder / "endpoints" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path.with_name(f"{name}.metrics"), metrics)
        write_whole(path, endpoint, is_private="ipc://" in endpoint)

    return announce


def report_compilation(settings: Settings, name: str) -> None:
    """From now on, reports kernels that are being compiled to the log and the supervisor."""
    from infra.base.kernels import LISTENERS  # loads numba, which few commands need
    from infra.run.supervision.compiling import CompilationReport

    LISTENERS[:] = [CompilationReport(settings.folder / "endpoints" / name)]


def log_settings(settings: Settings) -> None:
    """Logs the effective settings, without secrets."""
    structlog.get_logger().info("settings", settings=describe(settings.model_dump(mode="json")))


@cache
def _tell_build() -> None:
    """Logs the build once per process, however many parts run in it."""
    Meter().gauge("build_info", 1, version=code_version(), python=platform.python_version())


def log_dense_part(settings: Settings) -> None:
    """Logs the size of a worker's dense part before it is allocated."""
    part = dense_part(settings)
    log = structlog.get_logger()
    log.info("dense part", weights=part.weights, bytes=part.bytes, bytes_of_a_worker=part.worker_bytes)
    if part.is_heavy:
        log.warning(heavy_warning(settings, part))


def curve_of(settings: Settings, name: str) -> Curve | None:
    """This process's keys, or None without encryption; checked here because ZeroMQ would only say 'invalid'."""
    if settings.curve_folder is None:
        return None
    curve = load_curve(settings.curve_folder, name)
    try:
        usable = zmq.curve_public(curve.secret) == curve.public and len(z85.decode(curve.server)) == 32
    except (zmq.ZMQError, ValueError, KeyError, struct.error):
        usable = False
    if not usable:
        raise ConfigError(
            f"{name}.secret or server.public in {settings.curve_folder} is not a CURVE key; expected files made by "
            "'freshet keys'; copy them again, or make new ones for all"
        )
    return curve


def _dispatch_at(settings: Settings, endpoint: str) -> "DispatchConfig":
    """The dispatcher's configuration with the given endpoint.

    Private sockets are next to the supervisor's, so that the next dispatcher finds them again.
    """
    from infra.run.agent.agent import AGENT_FILE
    from infra.run.agent.sockets import sockets_of

    given = settings.dispatch.model_copy(update={"endpoint": endpoint or settings.dispatch.endpoint})
    sockets = sockets_of(settings.folder / "endpoints" / AGENT_FILE) if is_supervised() else None
    return given if sockets is None else given.with_sockets(sockets)


def _publisher_at(settings: Settings, shard: int) -> str:
    """Where a shard publishes files of checkpoints; empty: it chooses."""
    given = settings.ps.publisher_endpoints
    return _at(given, shard, "ps.publisher_endpoints") if given else ""


def _publishing(settings: Settings) -> "Publishing":
    from dispatch.job import GateRule, Publishing

    serving = settings.serving
    return Publishing(
        serving.publish_seconds,
        GateRule(
            logloss=serving.gate_logloss,
            calibration=serving.gate_calibration,
            changed_share=serving.gate_live_rows,
            samples=serving.gate_samples,
        ),
    )


def _at(endpoints: tuple[str, ...], number: int, setting: str) -> str:
    if not 0 <= number < len(endpoints):
        raise ConfigError(
            f"no endpoint for shard {number} in {setting} = {list(endpoints)}; expected one per shard; give "
            "--endpoint, or set it"
        )
    return endpoints[number]

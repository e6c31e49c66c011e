"""The processes as commands: each turns settings into one call of its folder's ``main``.

Signals are caught before anything slow is imported, so that SIGTERM at any moment is a request to stop and exit 0.
"""

import struct
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer
import zmq
from zmq.utils import z85

from infra.config import check_names
from infra.errors import ConfigError
from infra.link import Link
from infra.process import Stop, end_with_parent, stop_on_signals, write_whole
from infra.run.settings import Settings, load_settings, read_stored
from infra.telemetry import Meter, configure_logging, describe, start_metrics
from infra.wire import Curve, load_curve

ConfigFile = Annotated[Path | None, typer.Option("--config", help="Settings file (TOML).", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="One setting, as in stream.batch=1024. Repeatable.", show_default=False),
]
RunFolder = Annotated[
    Path | None, typer.Option("--run-folder", help="Take the settings stored in this run's folder.", show_default=False)
]
Name = Annotated[str, typer.Option(help="Name of this process; unique in its run.", callback=check_names)]
FromTime = Annotated[
    str | None,
    typer.Option(help="Begin with what came at this time, ISO 8601 or unix seconds, or later.", show_default=False),
]
FromOffsets = Annotated[
    str | None, typer.Option(help="Begin at these records, as in 0:123,1:77 (partition:offset).", show_default=False)
]
ShardEndpoints = Annotated[
    list[str] | None, typer.Option("--ps", help="Endpoint of each shard, in order.", show_default=False)
]


def ps(
    shard: Annotated[int, typer.Option(help="Number of this shard, from 0.")],
    name: Name = "ps",
    endpoint: Annotated[str, typer.Option(help="Where to listen.", show_default=False)] = "",
    config: ConfigFile = None,
    overrides: Overrides = None,
    run_folder: RunFolder = None,
) -> None:
    """Serve one shard of the parameter server.

    Example: freshet ps --config freshet.toml --shard 0 --endpoint tcp://10.0.0.5:5600
    """
    stop = start()
    settings = choose_settings(config, overrides, run_folder)
    where = endpoint or _at(settings.ps.endpoints, shard, "ps.endpoints")
    from ps.main import run_shard

    rows = settings.scaled_rows
    curve = curve_of(settings, "server")
    announce = begin(settings, name)
    run_shard(shard, settings.ps, rows, settings.run, settings.seed, where, stop, announce, curve, Meter())


def dispatcher(
    name: Name = "dispatcher",
    samples: Annotated[int | None, typer.Option(help="Stop after exactly so many samples.", min=1)] = None,
    stop_at_end: Annotated[bool, typer.Option("--stop-at-end", help="Stop where the stream ends now.")] = False,
    mark_at: Annotated[int | None, typer.Option(help="Also measure quality after so many samples.", min=1)] = None,
    from_time: FromTime = None,
    from_offsets: FromOffsets = None,
    shards: ShardEndpoints = None,
    config: ConfigFile = None,
    overrides: Overrides = None,
    run_folder: RunFolder = None,
) -> None:
    """Form batches, decide which worker trains which sample, and keep the order of steps.

    Example: freshet dispatcher --config freshet.toml --ps tcp://10.0.0.5:5600 --ps tcp://10.0.0.6:5600
    """
    stop = start()
    settings = choose_settings(config, overrides, run_folder)
    from dispatch.main import Job, run_dispatcher
    from ingest.opening import check_source, open_letters, open_source
    from ingest.streams.start import start_positions

    curve = curve_of(settings, "server")
    endpoints = shard_endpoints(settings, shards)
    check_source(settings.stream, settings.kafka, settings.event_schema)
    source = open_source(settings.stream, settings.kafka)
    job = Job(
        run=settings.run,
        seed=settings.seed,
        folder=settings.folder,
        stream=settings.stream,
        dispatch=settings.dispatch,
        schema=settings.event_schema,
        shard_endpoints=endpoints,
        endpoint=settings.dispatch.endpoint,
        status_endpoint=settings.dispatch.status_endpoint,
        samples=samples,
        stop_at_end=stop_at_end,
        mark_at=mark_at,
        curve=curve,
        start=start_positions(source, from_time, from_offsets),
    )
    with closing(source), closing(open_letters(settings.stream, settings.kafka, settings.run)) as letters:
        announce = begin(settings, name)
        run_dispatcher(job, source, letters, stop, lambda *endpoints: announce("\n".join(endpoints)), Meter())


def broker(
    name: Name = "broker",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for a free one.", min=0, max=65535)] = 0,
    config: ConfigFile = None,
    overrides: Overrides = None,
    run_folder: RunFolder = None,
) -> None:
    """Run one Apache Kafka broker on this machine, with the topics of a run; needs Java 17 and, at first, Maven.

    Its data lies in the run's folder, below broker/. It listens on this machine alone.

    Example: freshet broker --port 9092 --set folder=runs/broker
    """
    stop = start()
    settings = choose_settings(config, overrides, run_folder)
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


def worker(
    dispatcher: Annotated[str, typer.Option(help="Endpoint of the dispatcher.", show_default=False)] = "",
    name: Name = "worker",
    link: Annotated[float | None, typer.Option(help="Shape this worker's link to so many Gbit/s.")] = None,
    shards: ShardEndpoints = None,
    config: ConfigFile = None,
    overrides: Overrides = None,
    run_folder: RunFolder = None,
) -> None:
    """Train: keep a cache of rows, execute the dispatcher's orders.

    Example: freshet worker --config freshet.toml --name edge-7 --dispatcher tcp://10.0.0.4:5500 --ps tcp://10.0.0.5:5600
    """
    stop = start()
    settings = choose_settings(config, overrides, run_folder)
    where = dispatcher or settings.dispatch.endpoint
    shaped = Link(link)
    from trainer.main import run_worker

    schema = settings.event_schema
    endpoints, curve = shard_endpoints(settings, shards), curve_of(settings, name)
    announce = begin(settings, name)
    run_worker(
        name,
        where,
        endpoints,
        settings.scaled_rows,
        settings.model,
        settings.trainer,
        schema.fields,
        schema.dense,
        settings.run,
        settings.seed,
        settings.folder,
        stop,
        lambda: announce(where),
        shaped,
        curve,
        Meter(),
    )


def api(
    name: Name = "api",
    config: ConfigFile = None,
    overrides: Overrides = None,
    run_folder: RunFolder = None,
) -> None:
    """Serve the control plane over REST.

    Example: freshet api --set api.port=8080
    """
    stop = start()
    settings = choose_settings(config, overrides, run_folder)
    from api.main import run_api

    run_api(settings.api.host, settings.api.port, stop, begin(settings, name))


# ── shared by the commands ────────────────────────────────────────────────────────────────────────────────────────────
def start() -> Stop:
    """The first thing a process does."""
    stop = stop_on_signals()
    end_with_parent()
    return stop


def choose_settings(
    config: Path | None,
    overrides: list[str] | None,
    run_folder: Path | None,
    defaults: Mapping[str, Any] | None = None,
) -> Settings:
    if run_folder is not None:
        return read_stored(run_folder)
    return load_settings(config, overrides or (), defaults)


def begin(settings: Settings, name: str) -> Callable[[str], None]:
    """Logs and metrics; returns what the process calls, with its endpoint, once it is ready.

    Whatever is wrong with the arguments is found before: it is then told in one line and nothing else.
    """
    configure_logging(name, settings.run, settings.telemetry.log_format, settings.telemetry.log_level)
    host = settings.telemetry.metrics_host
    port = start_metrics(settings.telemetry.metrics_port, host)
    metrics = f"http://[{host}]:{port}/metrics" if ":" in host else f"http://{host}:{port}/metrics"
    log_settings(settings)
    structlog.get_logger().info("serving metrics", address=metrics)

    def announce(endpoint: str) -> None:
        path = settings.folder / "endpoints" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path.with_name(f"{name}.metrics"), metrics)
        write_whole(path, endpoint)

    return announce


def log_settings(settings: Settings) -> None:
    """The effective settings, once a process, without secrets."""
    structlog.get_logger().info("settings", settings=describe(settings.model_dump(mode="json")))


def curve_of(settings: Settings, name: str) -> Curve | None:
    """This process's keys, if connections are encrypted; checked here, because ZeroMQ would only say 'invalid'."""
    if settings.curve_folder is None:
        return None
    curve = load_curve(settings.curve_folder, name)
    try:
        usable = zmq.curve_public(curve.secret) == curve.public and len(z85.decode(curve.server)) == 32
    except (zmq.ZMQError, ValueError, KeyError, struct.error):
        usable = False
    if not usable:
        raise ConfigError(
            f"{name}.secret or server.public in {settings.curve_folder} is no CURVE key: expected files made by "
            "'freshet keys'; copy them again, or make new ones for all"
        )
    return curve


def shard_endpoints(settings: Settings, given: list[str] | None) -> tuple[str, ...]:
    endpoints = tuple(given or settings.ps.endpoints)
    if len(endpoints) != settings.ps.shards:
        raise ConfigError(
            f"{len(endpoints)} shard endpoints for ps.shards = {settings.ps.shards}; expected one a shard: give --ps "
            "for each, or set ps.endpoints"
        )
    return endpoints


def _at(endpoints: tuple[str, ...], number: int, setting: str) -> str:
    if not 0 <= number < len(endpoints):
        raise ConfigError(f"no endpoint for shard {number} in {setting} = {list(endpoints)}; give --endpoint or set it")
    return endpoints[number]

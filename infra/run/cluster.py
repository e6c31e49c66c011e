"""All of Freshet on one machine: which processes there are, what each needs, and in which order they stop.

Stopping goes with the data: no new events, then the dispatcher drains and dismisses the workers, then the shards; a
Kafka broker last.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import numpy as np
import zmq

from dispatch.progress.prequential import Prequential
from dispatch.progress.status import Status, Summary, summarize
from infra.errors import ConfigError
from infra.process import Stop
from infra.run.display import Display
from infra.run.settings import Settings, secret_environment, store_settings
from infra.run.supervisor import ProcessSpec, Supervisor
from infra.wire import Curve, connect, load_curve
from ingest.producing.synthetic import CHUNK, World

BROKER = "broker"
LATE_STATUS_MILLISECONDS = 200
"""how long to wait for the dispatcher's last status once its process has ended"""


@dataclass(frozen=True)
class Extras:
    """What a run has beside the trainers."""

    api: bool = True
    produce: tuple[str, ...] | None = None
    """arguments of ``freshet produce``; None: events come from elsewhere"""
    samples: int | None = None
    """stop after exactly so many samples"""
    stop_at_end: bool = False
    """stop where the stream ends now"""
    mark_at: int | None = None
    """also measure quality over what comes after so many samples"""
    broker_port: int | None = None
    """run a Kafka broker too, there; None: events are in the embedded log, or on a broker that runs elsewhere"""
    start_arguments: tuple[str, ...] = ()
    """--from-time or --from-offsets"""


def run_cluster(
    settings: Settings, extras: Extras, stop: Stop, display: Display, best_auc: Callable[[int], float] | None = None
) -> Summary:
    """Runs everything until the stream ends or a stop is requested; returns the summary of the run."""
    check_ports(settings)
    store_settings(settings)
    supervisor = Supervisor(list(specs(settings, extras)), settings.folder)
    curve = load_curve(settings.curve_folder, "server") if settings.curve_folder is not None else None
    with statuses(supervisor, curve) as newest, display:

        def show() -> None:
            status = newest()
            if status is not None:
                display.show(with_best(status, best_auc))

        outcome = supervisor.run(stop, show)
        last = newest(LATE_STATUS_MILLISECONDS) or Status(run=settings.run, policy=settings.dispatch.policy)
        return summarize(with_best(last, best_auc), outcome.reason, outcome.restarts, outcome.killed)


def check_ports(settings: Settings) -> None:
    """Raises ConfigError for a port that the processes of one machine would have to share."""
    if port := settings.telemetry.metrics_port:
        raise ConfigError(
            f"telemetry.metrics_port = {port} is one port for all processes of this machine; expected 0, with which "
            f"each chooses its own and tells it in {settings.folder}/endpoints/NAME.metrics; unset it"
        )


def with_best(status: Status, best_auc: Callable[[int], float] | None) -> Status:
    """Adds the best possible AUC on as many samples, where it is known."""
    if best_auc is None or status.samples == 0:
        return status
    return msgspec.structs.replace(status, best_auc=best_auc(status.samples))


class KnownBest:
    """The best possible AUC on the first samples of the synthetic stream, in whole chunks, added up as the run goes on.

    It is that of someone who knows every click probability: no model can expect to do better.
    """

    def __init__(self, seed: int) -> None:
        self._world = World(seed)
        self._quality = Prequential()
        self._chunks = 0

    def __call__(self, samples: int) -> float:
        while self._chunks * CHUNK < samples:
            chunk = self._world.chunk(self._chunks)
            odds_B = np.log(chunk.probabilities_B) - np.log1p(-chunk.probabilities_B)
            self._quality.add(odds_B, chunk.labels_B.astype(np.float64))
            self._chunks += 1
        return self._quality.overall().auc or 0.5


@contextmanager
def statuses(supervisor: Supervisor, curve: Curve | None) -> Iterator[Callable[..., Status | None]]:
    """A function that returns the newest status the dispatcher has published, None before the first."""
    decoder = msgspec.json.Decoder(Status)
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.CONFLATE, 1)
        socket.subscribe(b"")
        connected, last = "", None

        def newest(wait_milliseconds: int = 0) -> Status | None:
            nonlocal connected, last
            endpoint = supervisor.endpoints().get("dispatcher", "")
            if endpoint and endpoint != connected:
                connect(socket, endpoint.split()[1], curve)
                connected = endpoint
            if socket.poll(wait_milliseconds):
                last = decoder.decode(socket.recv())
            return last

        yield newest


def specs(settings: Settings, extras: Extras) -> Iterator[ProcessSpec]:
    """The processes, upstream last: a shard must listen before anyone can call it."""
    links = settings.dispatch.links_gbit
    if extras.broker_port is not None:
        port = ("--port", str(extras.broker_port))
        yield _spec(settings, BROKER, "broker", *port, restart="on_failure", stop_order=4)
    shards = tuple(f"ps-{number}" for number in range(settings.ps.shards))
    for number, name in enumerate(shards):
        endpoint = settings.ps.endpoints[number] if settings.ps.endpoints else "tcp://127.0.0.1:*"
        yield _spec(settings, name, "ps", "--shard", str(number), "--endpoint", endpoint, stop_order=3)
    yield _dispatcher(settings, extras, shards)
    for number in range(settings.dispatch.workers):
        link = ("--link", str(links[number])) if links else ()
        yield _worker(settings, f"worker-{number}", shards, link)
    if extras.api:
        yield _spec(settings, "api", "api", restart="on_failure", essential=False, stop_order=4)
    if extras.produce is not None:
        produce = [*_command("produce", settings), *extras.produce]
        yield ProcessSpec(
            "produce",
            produce,
            env=secret_environment(settings),
            needs=_brokers(extras),
            restart="on_failure",
            essential=False,
            stop_order=0,
        )


def _command(command: str, settings: Settings) -> list[str]:
    return [sys.executable, "-m", "infra.cli.entry", command, "--run-folder", str(settings.folder)]


def _spec(settings: Settings, name: str, command: str, *arguments: str, **options: object) -> ProcessSpec:
    argv = [*_command(command, settings), "--name", name, *arguments]
    return ProcessSpec(name, argv, endpoint_file=settings.folder / "endpoints" / name, **options)  # type: ignore[arg-type]


def _dispatcher(settings: Settings, extras: Extras, shards: tuple[str, ...]) -> ProcessSpec:
    arguments = ["--name", "dispatcher"]
    arguments += ["--samples", str(extras.samples)] if extras.samples is not None else []
    arguments += ["--mark-at", str(extras.mark_at)] if extras.mark_at is not None else []
    arguments += ["--stop-at-end"] if extras.stop_at_end else []
    arguments += extras.start_arguments

    def argv(endpoints: Mapping[str, str]) -> list[str]:
        return [*_command("dispatcher", settings), *arguments, *_shard_arguments(endpoints, shards)]

    return ProcessSpec(
        "dispatcher",
        argv,
        env=secret_environment(settings),
        needs=(*shards, *_brokers(extras)),
        endpoint_file=settings.folder / "endpoints" / "dispatcher",
        ends_run=True,
        stop_order=1,
        stop_seconds=settings.dispatch.drain_seconds + 10.0,
    )


def _brokers(extras: Extras) -> tuple[str, ...]:
    """What must be there before anyone reads or writes events."""
    return () if extras.broker_port is None else (BROKER,)


def _worker(settings: Settings, name: str, shards: tuple[str, ...], link: tuple[str, ...]) -> ProcessSpec:
    def argv(endpoints: Mapping[str, str]) -> list[str]:
        dispatcher = endpoints["dispatcher"].split()[0]
        command = [*_command("worker", settings), "--name", name, "--dispatcher", dispatcher, *link]
        return [*command, *_shard_arguments(endpoints, shards)]

    return ProcessSpec(name, argv, needs=("dispatcher",), env=_worker_env(settings), stop_order=2)


def _worker_env(settings: Settings) -> dict[str, str]:
    """Workers on one machine share its cores: more threads than cores would spend their time waiting for each other."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = settings.trainer.threads or max(1, cores // settings.dispatch.workers)
    return {"OMP_NUM_THREADS": str(threads)}


def _shard_arguments(endpoints: Mapping[str, str], shards: tuple[str, ...]) -> list[str]:
    return [part for shard in shards for part in ("--ps", endpoints[shard])]

"""All of Freshet on one machine: which processes there are, what each needs, and in which order they stop.

Processes are stopped along the path of the data: first those that write events, then the dispatcher, which drains and
releases the workers, then the shards, and a Kafka broker last.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import msgspec
import numpy as np
import structlog
import zmq

from dispatch.journal.history import JOURNAL
from dispatch.journal.log import rest_of
from dispatch.progress.prequential import Prequential
from dispatch.progress.status import Status, Summary, summarize
from infra.base.errors import ConfigError, ProcessFailed
from infra.base.link_gbit import LinkGbit
from infra.base.parts import COMMAND
from infra.base.process import Stop
from infra.base.run_folder import DISPATCHER, STATUS_WORD, link_file
from infra.base.wire import Curve, connect, load_curve
from infra.run.agent.agent import AGENT_FILE, Agent
from infra.run.checks import check_start
from infra.run.dense_part import DensePart, dense_part, heavy_warning
from infra.run.display import Display
from infra.run.folder import as_path, may_go_on
from infra.run.network import Network
from infra.run.nodes.actor import HOST
from infra.run.nodes.placing import RayNodes
from infra.run.notices import API, SERVE, Notices
from infra.run.settings import Settings, secret_environment, store_settings, threads_of, usable_cores
from infra.run.supervision.child import ProcessSpec
from infra.run.supervision.nursery import nursery_in
from infra.run.supervision.supervisor import Supervisor
from infra.web.store.place import database_url
from ingest.producing.synthetic import CHUNK, World

BROKER = "broker"
WORKER = "worker-"
MOST_RESTARTS = 5
"""Most restarts in a row, without a further step, of a process that a run needs."""
NODE_ALIVE_SECONDS = 15.0
"""How long a process on a node of a cluster may give no sign of life: it comes through Ray, which may be late."""
LATE_STATUS_MILLISECONDS = 200
"""How long to wait for the dispatcher's last status once its process has ended."""


@dataclass(frozen=True)
class Extras:
    """What one run consists of, besides its settings."""

    api: bool = True
    """Whether to run the API."""
    serve: bool = False
    """Whether to serve predictions."""
    produce: tuple[str, ...] | None = None
    """Arguments with which to run ``freshet produce``; None: events come from elsewhere."""
    samples: int | None = None
    """Stops after exactly this many samples."""
    stop_at_end: bool = False
    """Stops at the current end of the stream."""
    mark_at: int | None = None
    """Also measures quality and speed of what comes after this many samples."""
    broker_port: int | None = None
    """Port of a Kafka broker to run; None: events are in the embedded log, or on a broker that runs elsewhere."""
    start_arguments: tuple[str, ...] = ()
    """--from-time or --from-offsets."""
    network: Network | None = None
    """Runs every worker in its namespace; servers must listen at its host."""
    worker_cores: tuple[tuple[int, ...], ...] = ()
    """Cores that each worker may use, by number; empty: any."""
    golden: Path | None = None
    """Replays the journal of the run in this folder, and trains nothing else."""
    last_step: int | None = None
    """Last step of the replay."""
    nodes: RayNodes | None = None
    """Runs the processes on the nodes of a Ray cluster; the settings must be adapted to them."""


def run_cluster(
    settings: Settings, extras: Extras, stop: Stop, display: Display, best_auc: Callable[[int], float] | None = None
) -> Summary:
    """Runs everything until the stream ends or a stop is requested; returns the summary of the run.

    best_auc: the best possible AUC on a number of samples, if it is known.
    """
    check_start(settings)
    settings = with_threads(settings)
    (settings.folder / JOURNAL).mkdir(parents=True, exist_ok=True)  # with settings alone it is taken for an agent's
    store_settings(settings)
    kept = list(kept_alive(specs(settings, extras), settings, extras))
    starter = extras.nodes or nursery_in(settings.folder, _worker_env(settings))
    supervisor = Supervisor(kept, settings.folder, lambda: statuses.furthest, starter)
    curve = load_curve(settings.curve_folder, "server") if settings.curve_folder is not None else None
    dense = tell_dense_part(settings, display)
    rest = rest_of(settings.folder / JOURNAL)
    with (
        StatusSubscription(lambda: status_endpoint(supervisor), curve) as statuses,
        Agent(
            supervisor,
            settings.run,
            settings.folder / "endpoints" / AGENT_FILE,
            lambda name, link: further_worker(settings, extras, name, link),
            WORKER,
            0.0 if rest is None else rest.since,
        ) as agent,
        display,
    ):
        leavers = EarlyLeavers(supervisor)
        notices = Notices(supervisor, token_command(settings), link_file(settings.folder))

        def show() -> None:
            agent.serve()
            for line in notices.new():
                display.print_line(line)
            status = statuses.newest()
            if status is None:
                display.starting(supervisor.awaited())
            else:
                leavers.check(status, statuses.received)
                display.show(with_best(status, best_auc), supervisor.awaited())

        outcome = supervisor.run(stop, show)
        unstarted = Status(run=settings.run, policy=settings.dispatch.policy)
        last = statuses.newest(LATE_STATUS_MILLISECONDS) or unstarted
        is_stopped = outcome.reason == "finished" and extras.golden is None and may_go_on(settings.folder)
        reason = "stopped" if is_stopped else outcome.reason
        summary = summarize(with_best(last, best_auc), reason, outcome.restarts, outcome.killed)
        return msgspec.structs.replace(summary, dense_weights=dense.weights, dense_bytes=dense.bytes)


def token_command(settings: Settings) -> str:
    """The command that creates a token for the API of a run; it names the database if that is not the usual one."""
    usual = database_url(None, Path("runs"))
    runs = settings.api.runs or settings.folder
    given = settings.api.database
    url = database_url(settings.api.database, runs)
    where = "" if url == usual else " --database URL" if given is not None else f" --database {url}"
    return f"'freshet token create --name YOU --scope read --scope control{where}'"


def tell_dense_part(settings: Settings, display: Display) -> DensePart:
    """Logs the size of the dense part, and warns if it is heavy before a worker allocates it."""
    part = dense_part(settings)
    log = structlog.get_logger("supervisor")
    log.info("dense part", weights=part.weights, bytes=part.bytes, bytes_of_a_worker=part.worker_bytes)
    if part.is_heavy:
        warning = heavy_warning(settings, part)
        log.warning(warning)
        display.print_line(f"warning: {warning}")
    return part


def with_best(status: Status, best_auc: Callable[[int], float] | None) -> Status:
    """Adds the best possible AUC on as many samples, if it is known."""
    if best_auc is None or status.samples == 0:
        return status
    return msgspec.structs.replace(status, best_auc=best_auc(status.samples))


class KnownBest:
    """The best possible AUC on the first samples of the synthetic stream, in whole chunks, computed during the run.

    It is the AUC of the true click probabilities: no model can be expected to do better.
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


class StatusSubscription:
    """Receives what the dispatcher publishes, from the moment its endpoint is known."""

    def __init__(self, endpoint: Callable[[], str | None], curve: Curve | None) -> None:
        """endpoint: where statuses are published now; None while that is not known."""
        self._endpoint = endpoint
        self._curve = curve
        self._decoder = msgspec.json.Decoder(Status)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.set(zmq.LINGER, 0)
        self._socket.set(zmq.CONFLATE, 1)
        self._socket.subscribe(b"")
        self._connected = ""
        self._last: Status | None = None
        self.received = 0
        self.furthest = 0
        """The highest step of any status: a run that recovers trains older ones again."""

    def __enter__(self) -> "StatusSubscription":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()
        self._context.term()

    def newest(self, wait_milliseconds: int = 0) -> Status | None:
        """The newest status, None before the first; waits that long for a new one."""
        endpoint = self._endpoint()
        if endpoint is not None and endpoint != self._connected:
            connect(self._socket, endpoint, self._curve)
            self._connected = endpoint
        if self._socket.poll(wait_milliseconds):
            self._last = self._decoder.decode(self._socket.recv())
            self.received += 1
            self.furthest = max(self.furthest, self._last.step)
        return self._last


def status_endpoint(supervisor: Supervisor) -> str | None:
    """Where the dispatcher publishes its statuses now."""
    words = supervisor.endpoints().get(DISPATCHER, "").split()
    return words[STATUS_WORD] if words else None


class EarlyLeavers:
    """Notices a worker that left before the first generation began: the run would wait for it forever."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._left: dict[str, int] = {}
        """Statuses received when each such worker had just left."""
        self._has_begun = False
        """Whether there was a generation: a restarted dispatcher has none at first."""

    def check(self, status: Status, received: int) -> None:
        """Raises ProcessFailed if two later statuses show that the run still waits; one may have been on its way."""
        self._has_begun = self._has_begun or status.generation > 0
        for name, child in self._supervisor.children.items():
            is_gone = child.state == "finished" and not child.is_ending
            has_left = not self._has_begun and is_gone and name.startswith(WORKER)
            if has_left and received >= self._left.setdefault(name, received) + 2:
                raise ProcessFailed(child.explain())


# ── the processes ─────────────────────────────────────────────────────────────────────────────────────────────────────
def specs(settings: Settings, extras: Extras) -> Iterator[ProcessSpec]:
    """The processes in order of need: shards and workers offer themselves to the dispatcher."""
    if extras.broker_port is not None:
        broker = _listening(settings, BROKER, "broker", "--port", str(extras.broker_port))
        yield replace(broker, restart="on_failure", stop_order=4)
    yield _dispatcher(settings, extras)
    for number in range(settings.ps.shards):
        yield _shard(settings, extras, number)
    links = settings.dispatch.links
    for number in range(settings.dispatch.workers):
        link = links[number].options if links else ()
        yield _worker(settings, f"{WORKER}{number}", link, _place(extras, number))
    if extras.api:
        served = replace(_listening(settings, API, "api"), env=secret_environment(settings), restart="on_failure")
        yield replace(served, max_restarts=None, essential=False, stop_order=4)
    if extras.produce is not None:
        yield _producer(settings, extras, extras.produce)
    if extras.serve:
        yield from _servers(settings)


def kept_alive(found: Iterable[ProcessSpec], settings: Settings, extras: Extras) -> Iterator[ProcessSpec]:
    """The same, watched for signs of life and restarted when they fail.

    Not those of a replay: it changes nothing, and is started again as a whole.
    """
    for spec in found:
        watched = replace(spec, alive_file=settings.folder / "endpoints" / f"{spec.name}.alive")
        if extras.nodes is not None:
            watched = replace(watched, alive_seconds=NODE_ALIVE_SECONDS)
        lasting = spec.essential and extras.golden is None
        yield replace(watched, restart="on_failure", max_restarts=MOST_RESTARTS) if lasting else watched


def further_worker(settings: Settings, extras: Extras, name: str, link: LinkGbit) -> ProcessSpec:
    """A worker that joins a live run, which can continue without it; raises ConfigError if it cannot join.

    link: a downlink of 0 if it is not given.
    """
    if extras.network is not None:
        raise ConfigError(f"worker {name!r} cannot be added: every worker of this run has a network of its own")
    if settings.curve_folder is not None:
        load_curve(settings.curve_folder, name)
    (spec,) = kept_alive([_worker(settings, name, link.options, [])], settings, extras)
    return replace(spec, essential=False)


def _command(command: str, settings: Settings) -> list[str]:
    return [*COMMAND, command, "--run", as_path(settings.folder)]


def _listening(settings: Settings, name: str, command: str, *arguments: str) -> ProcessSpec:
    """A process that is ready once it has written its endpoint."""
    argv = [*_command(command, settings), "--name", name, *arguments]
    return ProcessSpec(name, argv, endpoint_file=settings.folder / "endpoints" / name)


def _dispatcher(settings: Settings, extras: Extras) -> ProcessSpec:
    arguments = ["--name", DISPATCHER]
    arguments += ["--samples", str(extras.samples)] if extras.samples is not None else []
    arguments += ["--mark-at", str(extras.mark_at)] if extras.mark_at is not None else []
    arguments += ["--stop-at-end"] if extras.stop_at_end else []
    arguments += ["--golden", str(extras.golden)] if extras.golden is not None else []
    arguments += ["--last-step", str(extras.last_step)] if extras.last_step is not None else []
    arguments += extras.start_arguments

    def argv(endpoints: Mapping[str, str]) -> list[str]:
        # after a restart it listens at the same address, which everyone knows
        address = ["--endpoint", endpoints[DISPATCHER].split()[0]] if DISPATCHER in endpoints else []
        return [*_command("dispatcher", settings), *arguments, *address]

    return ProcessSpec(
        DISPATCHER,
        argv,
        env=secret_environment(settings),
        needs=_brokers(extras),
        endpoint_file=settings.folder / "endpoints" / DISPATCHER,
        ends_run=True,
        stop_order=1,
        stop_seconds=settings.dispatch.drain_seconds + 10.0,
    )


def _shard(settings: Settings, extras: Extras, number: int) -> ProcessSpec:
    here = "127.0.0.1" if extras.network is None else extras.network.host
    host = here if extras.nodes is None else HOST
    own = settings.ps.endpoints[number] if settings.ps.endpoints else f"tcp://{host}:*"
    name = f"ps-{number}"
    command = [*_command("ps", settings), "--name", name, "--shard", str(number), "--endpoint", own]

    def argv(endpoints: Mapping[str, str]) -> list[str]:
        return [*command, "--dispatcher", endpoints[DISPATCHER].split()[0]]

    endpoint_file = settings.folder / "endpoints" / name
    return ProcessSpec(name, argv, needs=(DISPATCHER,), endpoint_file=endpoint_file, stop_order=3)


def _worker(settings: Settings, name: str, link: tuple[str, ...], inside: Sequence[str]) -> ProcessSpec:
    """inside: the prefix of a command that runs in the worker's namespace, on its cores; empty if it has none."""

    def argv(endpoints: Mapping[str, str]) -> list[str]:
        endpoint = endpoints[DISPATCHER].split()[0]
        return [*inside, *_command("worker", settings), "--name", name, "--dispatcher", endpoint, *link]

    return ProcessSpec(
        name,
        argv,
        env=_worker_env(settings),
        needs=(DISPATCHER,),
        endpoint_file=settings.folder / "endpoints" / name,
        may_finish=True,
        stop_order=2,
    )


def _place(extras: Extras, number: int) -> list[str]:
    """The prefix of a worker's command that makes it run in its namespace and on its cores."""
    inside = extras.network.inside(number) if extras.network is not None else []
    cores = ",".join(map(str, extras.worker_cores[number])) if extras.worker_cores else ""
    return [*inside, *(["taskset", "--cpu-list", cores] if cores else [])]


def _servers(settings: Settings) -> Iterator[ProcessSpec]:
    """All servers on one port: that of the first, which keeps it after a restart, since clients know it."""
    for number in range(settings.serving.processes):
        name = SERVE if not number else f"{SERVE}-{number}"

        def argv(endpoints: Mapping[str, str], name: str = name) -> list[str]:
            known = endpoints.get(SERVE, "").rpartition(":")[2]
            port = ["--port", known, "--share-port"] if known else []
            return [*_command("serve", settings), "--name", name, *port]

        yield ProcessSpec(
            name,
            argv,
            env=_worker_env(settings),
            needs=(SERVE,) if number else (),
            endpoint_file=settings.folder / "endpoints" / name,
            restart="on_failure",
            max_restarts=None,
            essential=False,
            stop_order=4,
        )


def _producer(settings: Settings, extras: Extras, arguments: tuple[str, ...]) -> ProcessSpec:
    return ProcessSpec(
        "produce",
        [*_command("produce", settings), *arguments],
        env=secret_environment(settings),
        needs=_brokers(extras),
        restart="on_failure",
        may_finish=True,
        essential=False,
        stop_order=0,
    )


def _brokers(extras: Extras) -> tuple[str, ...]:
    """What must be ready before anyone reads or writes events."""
    return () if extras.broker_port is None else (BROKER,)


def with_threads(settings: Settings) -> Settings:
    """The same with numbers of threads for the workers, which a resumed run keeps: others may round differently."""
    if settings.trainer.threads:
        return settings
    shares = {"threads": threads_of(settings), "shared_cores": usable_cores()}
    return settings.model_copy(update={"trainer": settings.trainer.model_copy(update=shares)})


def _worker_env(settings: Settings) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(threads_of(settings))}

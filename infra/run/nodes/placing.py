"""Starts the processes of a run on the nodes of a Ray cluster, for the supervisor of ``freshet up --ray``.

Ray places an actor for each process (``infra.run.nodes.actor``), restarts it elsewhere if its node is lost, and carries
what the supervisor asks of it. Whether a process is restarted is the supervisor's decision, as on one machine, and what
a run returns to is the dispatcher's.

    dispatcher, API               on the supervisor's own node, where the run's folder with its journal is
    servers                       beside them, unless the settings let other machines reach them
    shards                        spread over the nodes that are not labelled as edge nodes
    workers                       spread over all nodes, or over those that ``ray.workers_on`` names

No call waits: every request has a future, which the supervisor's next pass looks at.
"""

import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import structlog

from infra.base.errors import ConfigError
from infra.base.parts import COMMAND
from infra.base.process import write_whole
from infra.base.wire import write_curve
from infra.run.folder import checkpoint_place
from infra.run.nodes.actor import AUTH_MODE, KEYS, TOKEN_MODE, NodeJob, NodeProcess, SeenProcess
from infra.run.settings import Settings
from ingest.schema import BUILT_IN

LOCAL = "local"
ROLE_LABEL = "freshet-role"
EDGE = "edge"
HEALTH: Mapping[str, int] = {
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 5,
}
"""Ray's settings with which it finds a lost node in about 6 s; by its defaults it takes more than half a minute."""
RECONNECT = "RAY_gcs_rpc_server_reconnect_timeout_s"
RECONNECT_SECONDS = 600
"""How long Ray's processes wait for a head that is away before they end; by default a minute."""
SPARE_KEYS = 16
"""Workers that can be added to a run with keys of its own."""
LOOK_SECONDS = 0.3
"""Time between two reports of a process."""
PLACED_SECONDS = 60.0
"""How long Ray may look for a node before the log says that there is none."""
CLOSE_SECONDS = 5.0
LOST = -signal.SIGKILL
"""Status of a process whose node or actor was lost: it dies with it."""
HERE = ("dispatcher", "api")
"""Commands that need the run's folder."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class NodePlacement:
    """What Ray should know about one process."""

    is_here: bool
    """Whether it must be on the supervisor's own node."""
    cpus: float = 0.0
    gpus: float = 0.0
    labels: Mapping[str, str] | None = None
    """Which labels of nodes are accepted."""


def placement_of(command: str, settings: Settings) -> NodePlacement:
    """Where a command may run."""
    wishes = settings.ray
    core = {ROLE_LABEL: f"!{EDGE}"}
    match command:
        case "ps":
            return NodePlacement(False, cpus=wishes.shard_cpus, labels=core)
        case "worker":
            labels = {"any": None, "core": core, "edge": {ROLE_LABEL: EDGE}}[wishes.workers_on]
            return NodePlacement(False, cpus=wishes.worker_cpus, gpus=wishes.worker_gpus, labels=labels)
        case "serve" if settings.api.database is not None and settings.serving.host not in LOOPBACK:
            return NodePlacement(False, cpus=wishes.server_cpus, labels=core)
        case _:
            return NodePlacement(True)


class NodeHandle:
    """A process on a node, with what a supervisor needs of ``subprocess.Popen``."""

    def __init__(self, ray: Any, actor: Any, name: str, folder: Path, log: Path) -> None:
        """folder: of the run; log: of the process, on this machine."""
        self._ray = ray
        self._actor = actor
        self._name = name
        self._folder = folder
        self._log = log
        self._pending: Any = None
        self._since = time.monotonic()
        self._log_bytes = 0
        self._touched = 0
        self.pid = 0
        self.returncode: int | None = None

    def start(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        """Has the actor start the process, as soon as there is one: Ray may just be restarting it elsewhere."""
        asking = self._actor.start.options(max_task_retries=-1)
        self._pending = asking.remote(list(argv), dict(environment), str(self._log.absolute()))

    def poll(self) -> int | None:
        """The exit code as far as it is known here; writes down what the process has reported."""
        if self.returncode is not None:
            return self.returncode
        if self._pending is None and time.monotonic() - self._since > LOOK_SECONDS:
            self._pending = self._actor.look.remote(self._log_bytes)
        if self._pending is not None:
            self._take_answer()
        return self.returncode

    def wait(self) -> int:
        while (status := self.poll()) is None:
            time.sleep(LOOK_SECONDS)
        return status

    def terminate(self) -> None:
        self._actor.send_signal.remote(int(signal.SIGTERM))

    def kill_group(self) -> None:
        """Kills the process; nobody waits for a node that does not answer."""
        self._actor.kill_group.remote()
        if self.returncode is None:
            self.returncode = LOST

    def _take_answer(self) -> None:
        done, _ = self._ray.wait([self._pending], timeout=0)
        if not done:
            if not self.pid and time.monotonic() - self._since > PLACED_SECONDS:
                self._since = time.monotonic()
                self._write_log(b"freshet: Ray has no node for this process yet; see 'ray status'\n")
            return
        self._pending = None
        self._since = time.monotonic()
        try:
            answer = self._ray.get(done[0])
        except self._ray.exceptions.RayError as error:
            self._write_log(f"freshet: its actor was lost: {_first_line(error)}\n".encode())
            self.returncode = LOST
            return
        if self.pid:
            self._write_down(answer)
        else:
            self.pid = answer

    def _write_down(self, seen: SeenProcess) -> None:
        self._log_bytes += len(seen["log"])
        self._write_log(seen["log"])
        endpoints = self._folder / "endpoints"
        for ending, text in seen["files"].items():
            file = endpoints / f"{self._name}{ending}"
            if not file.exists() or file.read_text() != text:
                write_whole(file, text)
        if seen["touched"] > self._touched:
            self._touched = seen["touched"]
            (endpoints / f"{self._name}.alive").touch()
        self.returncode = seen["status"]

    def _write_log(self, text: bytes) -> None:
        if text:
            with suppress(OSError), self._log.open("ab") as log:
                log.write(text)


class RayNodes:
    """The nodes of one Ray cluster, as a supervisor uses them: it starts commands there."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._settings: Settings | None = None
        self._actors: dict[str, Any] = {}
        self.host: str = ray.util.get_node_ip_address()
        """This machine's address, as other nodes see it."""

    def adapt(self, settings: Settings) -> Settings:
        """The settings of a run whose processes are on several machines; keys are made for it unless it has some."""
        endpoint = f"tcp://{self.host}:*"
        dispatch = settings.dispatch.model_copy(
            update={"endpoint": endpoint, "feed_endpoint": f"tcp://{self.host}:{_free_port(self.host)}"}
        )
        url = settings.checkpoints.url or str(Path(checkpoint_place(settings.folder)).absolute())
        alive = sum(node["Alive"] for node in self._ray.nodes())
        if not settings.checkpoints.url and alive > 1:
            raise ConfigError(
                f"checkpoints.url is not set, and Ray has {alive} nodes; expected a place that all of them reach; set "
                "s3://BUCKET/PREFIX, or a folder that they share"
            )
        trainer = settings.trainer
        if not trainer.threads:
            trainer = trainer.model_copy(update={"threads": max(1, int(settings.ray.worker_cpus))})
        adapted = settings.model_copy(
            update={
                "folder": settings.folder.absolute(),
                "curve_folder": settings.curve_folder or settings.folder.absolute() / KEYS,
                "dispatch": dispatch,
                "ps": settings.ps.model_copy(update={"endpoints": (), "publisher_endpoints": ()}),
                "checkpoints": settings.checkpoints.model_copy(update={"url": url}),
                "trainer": trainer,
            }
        )
        if settings.curve_folder is None:
            _make_keys(adapted)
        self._settings = adapted
        return adapted

    def can_start(self, argv: Sequence[str]) -> bool:
        """Whether a command is a process of the run; a broker and a producer of events stay with the supervisor."""
        return tuple(argv[: len(COMMAND)]) == COMMAND and "--name" in argv and "broker" not in argv

    def start(self, argv: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> NodeHandle:
        """Starts a command; Ray may still look for a node when this returns."""
        assert self._settings is not None
        name = argv[argv.index("--name") + 1]
        if name not in self._actors:
            self._actors[name] = self._place(name, argv[len(COMMAND)])
        handle = NodeHandle(self._ray, self._actors[name], name, self._settings.folder, Path(str(log.name)))
        handle.start(argv, environment)
        return handle

    def close(self) -> None:
        """Ends every actor, and with it its process."""
        closing = [actor.close.remote() for actor in self._actors.values()]
        if closing:
            self._ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors.clear()

    def _place(self, name: str, command: str) -> Any:
        assert self._settings is not None
        placement = placement_of(command, self._settings)
        strategies = self._ray.util.scheduling_strategies
        here = self._ray.get_runtime_context().get_node_id()
        where: dict[str, Any] = {"scheduling_strategy": "SPREAD"}
        if placement.is_here:
            where = {"scheduling_strategy": strategies.NodeAffinitySchedulingStrategy(here, soft=False)}
        elif placement.labels is not None:
            where["label_selector"] = dict(placement.labels)
        options = {"num_cpus": placement.cpus, "num_gpus": placement.gpus, "max_restarts": -1, **where}
        structlog.get_logger("supervisor").info("placing", name=name, **options)
        job = node_job(self._settings, name, command, placement.is_here)
        return self._ray.remote(NodeProcess).options(**options).remote(job)


def node_job(settings: Settings, name: str, command: str, is_here: bool) -> NodeJob:
    """What the actor of one process is given: of the keys, only those that the process may have."""
    keys = settings.curve_folder
    assert keys is not None
    schema = settings.stream.schema_name
    own = ("server.public", f"{name}.secret") if command == "worker" else ("*.public", "server.secret")
    return NodeJob(
        name=name,
        folder=str(settings.folder) if is_here else "",
        working_directory=str(Path.cwd()),
        settings=settings.model_dump_json(),
        keys={} if is_here else {file.name: file.read_bytes() for each in own for file in keys.glob(each)},
        schema="" if is_here or schema in BUILT_IN else Path(schema).read_text(encoding="utf-8"),
    )


@contextmanager
def connected(address: str) -> Iterator[RayNodes]:
    """Connects to a Ray cluster, or starts one on this machine ('local'), which ends with this.

    Raises ConfigError if there is none, or if it lets anyone in.
    """
    _check_token(address)
    os.environ.setdefault(RECONNECT, str(RECONNECT_SECONDS))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = _load_ray()
    own: dict[str, Any] = {"include_dashboard": False, "_system_config": dict(HEALTH)} if address == LOCAL else {}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        ray.init(address=address, namespace="freshet", log_to_driver=False, logging_level="ERROR", **own)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise ConfigError(
            f"no Ray cluster can be used at {address!r}: {_first_line(error)}; expected the address of its head, with "
            "a node of Ray on this machine, or 'local'; start one with 'ray start', or correct --ray"
        ) from error
    finally:  # Ray would end the command at SIGTERM, without draining
        for number, handler in handlers.items():
            signal.signal(number, handler)
    nodes = RayNodes(ray)
    try:
        yield nodes
    finally:
        nodes.close()
        ray.shutdown()


def _load_ray() -> Any:
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise ConfigError(
            f"--ray needs Ray: {error}; expected the extra to be installed; run 'pip install freshet[ray]'"
        ) from error
    return ray


def _check_token(address: str) -> None:
    """Ray's connections are always authenticated: whoever may start an actor may run anything on every node."""
    mode = os.environ.setdefault(AUTH_MODE, TOKEN_MODE)
    if mode != TOKEN_MODE:
        raise ConfigError(
            f"{AUTH_MODE} is {mode!r}; expected {TOKEN_MODE!r}, here and on every node; correct or unset it"
        )
    given = any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    if address != LOCAL and not given and not (Path.home() / ".ray" / "auth_token").is_file():
        raise ConfigError(
            "there is no token for Ray; expected the cluster's in RAY_AUTH_TOKEN, in the file that RAY_AUTH_TOKEN_PATH "
            "names, or in ~/.ray/auth_token; 'ray get-auth-token --generate' makes one"
        )


def _make_keys(settings: Settings) -> None:
    """Keys for the servers, the workers, and some that may be added; those of a resumed run are kept."""
    assert settings.curve_folder is not None
    names = ["server", *(f"worker-{number}" for number in range(settings.dispatch.workers + SPARE_KEYS))]
    missing = [name for name in names if not (settings.curve_folder / f"{name}.secret").exists()]
    write_curve(settings.curve_folder, missing)


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__

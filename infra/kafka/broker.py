"""One Apache Kafka broker on this machine, for tests and for a run without a cluster: KRaft mode, one node, loopback.

    FOLDER/server.properties   written at every start
           data/               the broker's log; kept over restarts
           broker.log          the broker's output
           classes             its classes, while the first broker of this user ends (infra/kafka/jars.py)

``start`` returns once the broker answers. After ``stop`` or ``kill`` a ``start`` brings the same broker back at the
same address. It ends with the process that started it, however that ends; the kernel ties it to the *thread* that
called ``start``, so call it from a thread that lives as long as the broker should.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

from infra.base.errors import ProcessFailed
from infra.base.parts import IMPORTED_FROM, module
from infra.base.process import SUPERVISED
from infra.kafka.jars import class_archive, find_java, kafka_jars, keep_classes

HOST = "127.0.0.1"
FREE_PORTS = 15_000, 32_000
"""below those that connections get, of which one might be taken before it is used"""
STARTED = b"Kafka Server started"
PORT_TAKEN = (b"Address already in use", b"Address in use")
START_SECONDS = 90.0
STOP_SECONDS = 15.0
TRIES = 4
"""attempts to start: a port that was free may be taken before the broker binds it"""
TAIL_LINES = 15
TAIL_BYTES = 4000
TERMINATED = 128 + signal.SIGTERM
"""the status with which Java ends in order after SIGTERM"""
CLASSES = "classes"
JVM_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",  # other Javas know no archives of classes
    "-Xlog:disable",  # of what it thinks of archives of classes; errors are told in any case
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xss512k",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)


class Broker:
    """One broker process. Use as a context manager: leaving it stops the broker."""

    def __init__(
        self,
        folder: Path,
        listeners: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        scram: Mapping[str, str] | None = None,
        port: int = 0,
        heap_mib: int = 384,
        host: str = HOST,
    ) -> None:
        """Listeners (name → protocol: SSL, SASL_SSL, …) are added to the plain one.

        Properties override the broker's own; scram (user → password) takes effect at the first start; port is the plain
        listener's (0: a free one); host is the address of this machine that it listens on.
        """
        self.folder = folder.absolute()
        self.log = self.folder / "broker.log"
        self._protocols = {"PLAINTEXT": "PLAINTEXT", **(listeners or {}), "CONTROLLER": "PLAINTEXT"}
        self._properties = dict(properties or {})
        self._scram = dict(scram or {})
        self._port = port
        self._heap_mib = heap_mib
        self._host = host
        self._ports: dict[str, int] = {}
        self._popen: subprocess.Popen[bytes] | None = None
        self._archive: Path | None = None
        """Where the classes belong that the broker writes at its end; None: it writes none."""

    @property
    def address(self) -> str:
        """host:port of the plain listener; it stays the same after the first start."""
        return self.address_of("PLAINTEXT")

    def address_of(self, listener: str) -> str:
        return f"{self._host}:{self._ports[listener]}"

    @property
    def pid(self) -> int | None:
        return self._popen.pid if self._popen is not None else None

    @property
    def running(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    def __enter__(self) -> "Broker":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the broker and returns once it answers; does nothing if it is running."""
        if self.running:
            return
        java = find_java()
        jars = kafka_jars()
        self.folder.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, TRIES + 1):
            ports = self._ports or self._choose_ports()
            taken = [port for port in ports.values() if not is_free(port, self._host)]
            if not taken and self._came_up(java, jars, ports):
                self._ports = ports
                return
            time.sleep(0.2 * attempt)
        named = ", ".join(map(str, taken or ports.values()))
        raise ProcessFailed(
            f"the broker in {self.folder} cannot listen on {self._host}, port {named}, which "
            "another process has; expected a free port; stop that process, or choose another --port (0 for any)"
        )

    def check(self) -> None:
        """Raises ProcessFailed if the broker has exited."""
        if not self.running:
            raise self._failed("has ended", max(0, self.log.stat().st_size - TAIL_BYTES))

    def stop(self) -> None:
        """Asks the broker to end; kills it if it takes too long."""
        if self._popen is None:
            return
        if self.running:
            self._popen.terminate()
            try:
                if self._popen.wait(STOP_SECONDS) == TERMINATED and self._archive is not None:
                    keep_classes(self.folder / CLASSES, self._archive)
            except subprocess.TimeoutExpired:
                self.kill()
        self._popen = None

    def kill(self) -> None:
        """Ends the broker with SIGKILL, as a crash would."""
        if self._popen is not None:
            with suppress(ProcessLookupError):
                self._popen.send_signal(signal.SIGKILL)
            self._popen.wait()
            self._popen = None

    # ── inside ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def _choose_ports(self) -> dict[str, int]:
        """Free ports, all bound at once so that no two are the same."""
        with ExitStack() as held:
            ports: dict[str, int] = {}
            for name in self._protocols:
                probe = held.enter_context(socket.socket())
                if name == "PLAINTEXT" and self._port:
                    ports[name] = self._port
                    continue
                probe.bind((self._host, 0))
                ports[name] = probe.getsockname()[1]
            return ports

    def _came_up(self, java: str, jars: Path, ports: Mapping[str, int]) -> bool:
        """Starts the process and waits until it answers; False if another process took one of its ports."""
        self._write_properties(ports)
        self._format(java, jars)
        log_start = self._launch(java, jars)
        if self._await_started(log_start):
            return True
        self.kill()
        if any(text in self._output(log_start) for text in PORT_TAKEN):
            return False
        raise self._failed("did not start", log_start)

    def _write_properties(self, ports: Mapping[str, int]) -> None:
        listeners = {name: f"{name}://{self._host}:{port}" for name, port in ports.items()}
        lines = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{self._host}:{ports['CONTROLLER']}",
            "listeners": ",".join(listeners.values()),
            "advertised.listeners": ",".join(text for name, text in listeners.items() if name != "CONTROLLER"),
            "listener.security.protocol.map": ",".join(f"{name}:{p}" for name, p in self._protocols.items()),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self.folder / "data"),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "log.cleaner.dedupe.buffer.size": str(4 << 20),
            "broker.session.timeout.ms": "2000",  # a restart after a crash waits this long
            "broker.heartbeat.interval.ms": "250",
            "metadata.max.idle.interval.ms": "10000",  # of empty records, by default two a second
            "num.io.threads": "2",
            "num.network.threads": "1",
            **self._properties,
        }
        path = self.folder / "server.properties"
        path.touch(mode=0o600)  # it may hold passwords of keystores
        path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))

    def _format(self, java: str, jars: Path) -> None:
        """Formats the data folder, once."""
        if (self.folder / "data" / "meta.properties").exists():
            return
        users = [f"SCRAM-SHA-512=[name={name},password={password}]" for name, password in self._scram.items()]
        cluster = "F" + urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]  # never a dash first
        tool = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self.folder / "server.properties")]
        command = [
            *self._jvm(java, jars, 128, is_broker=False),
            *tool,
            *(part for user in users for part in ("--add-scram", user)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS)
        if done.returncode != 0:
            self.log.write_text(done.stdout + done.stderr)
            raise self._failed("could not format its data folder", 0)

    def _launch(self, java: str, jars: Path) -> int:
        """Starts the process; returns where its output begins in the log."""
        with self.log.open("ab") as log:
            log_start = log.tell()
            self._popen = subprocess.Popen(
                [
                    *(sys.executable, "-m", module("infra.kafka.launch")),
                    *self._jvm(java, jars, self._heap_mib, is_broker=True),
                    *("kafka.Kafka", str(self.folder / "server.properties")),
                ],
                env={**os.environ, SUPERVISED: str(os.getpid()), "PYTHONPATH": _import_path()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return log_start

    def _jvm(self, java: str, jars: Path, heap_mib: int, *, is_broker: bool) -> list[str]:
        """Java with the classes that are kept; a broker writes them at its end if there are none."""
        archive = class_archive(java, jars)
        self._archive = archive if is_broker and not archive.exists() else None
        if self._archive is not None:
            classes = f"-XX:ArchiveClassesAtExit={self.folder / CLASSES}"
        else:
            classes = f"-XX:SharedArchiveFile={archive}"
        return [java, f"-Xmx{heap_mib}m", *JVM_OPTIONS, classes, "-cp", f"{jars}/*"]

    def _await_started(self, log_start: int) -> bool:
        """Waits until the broker logs that it answers requests; False if it ends, finds a port taken or is too slow."""
        until = time.monotonic() + START_SECONDS
        while self.running and time.monotonic() < until:
            output = self._output(log_start)
            if STARTED in output:
                return True
            if any(text in output for text in PORT_TAKEN):
                return False
            time.sleep(0.05)
        return False

    def _output(self, start: int) -> bytes:
        with self.log.open("rb") as log:
            log.seek(start)
            return log.read()

    def _failed(self, what: str, log_start: int) -> ProcessFailed:
        self.kill()
        tail = self._output(log_start).decode(errors="replace").splitlines()[-TAIL_LINES:]
        lines = "\n".join(f"  | {line}" for line in tail)
        return ProcessFailed(
            f"the broker in {self.folder} {what}; expected it to answer within {START_SECONDS:g} seconds and to run "
            f"until it is stopped; see the end of its log {self.log}:\n{lines or '  | (empty)'}"
        )


def free_port() -> int:
    """A port nobody listens on now, of those that systems give to nobody who has not asked for it by number."""
    while not is_free(port := random.randrange(*FREE_PORTS)):
        pass
    return port


def is_free(port: int, host: str = HOST) -> bool:
    """Whether a server may listen on the port; what is left of its earlier connections does not matter."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _import_path() -> str:
    """PYTHONPATH with which the launcher is found from any working directory."""
    return os.pathsep.join(filter(None, (str(IMPORTED_FROM), os.environ.get("PYTHONPATH", ""))))

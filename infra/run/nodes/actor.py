"""What runs on a node of a Ray cluster: an actor that starts one process of a run, and says what became of it.

An actor decides nothing. The supervisor asks it to start a command, asks again and again what it sees, and has it send
signals. Ray restarts an actor whose node was lost on another one, where nothing runs until the supervisor asks for it.

A node shares no folder with the others: the actor writes the settings, the keys and the schema that it is given into a
folder of its own, and reports what the process writes there (its address, signs of life, its log).

The kernel ties the process to the thread that started it (``infra.base.process.end_with_parent``). Ray runs the methods
of an actor in the main thread of its process, so the process dies with the actor, however that ends.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

from infra.base.errors import ConfigError
from infra.base.files import open_log
from infra.base.process import SUPERVISED
from infra.run.settings import Settings, store_settings

HOST = "NODE"
"""Stands in a command for the address of the node that it runs on."""
AUTH_MODE = "RAY_AUTH_MODE"
TOKEN_MODE = "token"
KEYS = "keys"
SCHEMA = "schema.toml"
ANY_HOST = "0.0.0.0"
LINK_LABEL = "freshet-link-mbit"
"""Label of a node: the speed of its link in Mbit/s."""
LOG_BYTES = 1 << 16
"""Most bytes of the log in one report."""
REPORTED = ("", ".metrics", ".kernels")
"""Endings of the files in the folder of endpoints that the supervisor gets."""


class NodeJob(TypedDict):
    """What an actor needs to know; plain values, since it travels between machines."""

    name: str
    folder: str
    """The run's folder, if the node is the supervisor's own; empty: the actor makes one."""
    working_directory: str
    settings: str
    """Settings as JSON; the folders in them are the supervisor's."""
    keys: dict[str, bytes]
    """Files of the key folder that this process may have."""
    schema: str
    """The schema as TOML; empty: a built-in one."""


class SeenProcess(TypedDict):
    """What an actor sees."""

    status: int | None
    """Exit code; negative: the signal that ended it; None: it runs."""
    touched: int
    """When the process last gave a sign of life, by its own clock, in ns; 0: never."""
    files: dict[str, str]
    """Files that the process wrote, by their ending."""
    log: bytes
    """What follows in its log."""


class NodeProcess:
    """The actor of one process."""

    def __init__(self, job: NodeJob) -> None:
        import ray

        host = ray.util.get_node_ip_address()
        if os.environ.get(AUTH_MODE) != TOKEN_MODE:
            raise ConfigError(
                f"node {host} takes orders from anyone who reaches it: {AUTH_MODE} is not {TOKEN_MODE!r} there; "
                f"expected Ray's nodes to be started with {AUTH_MODE}={TOKEN_MODE}; restart them"
            )
        self._job = job
        self._host = host
        self._labels: Mapping[str, str] = ray.get_runtime_context().get_node_labels()
        self._process: subprocess.Popen[bytes] | None = None
        self._own = not job["folder"]
        self._folder = Path(job["folder"] or tempfile.mkdtemp(prefix=f"freshet-{job['name']}-"))
        if self._own:
            self._write_job()

    def start(self, argv: Sequence[str], environment: Mapping[str, str], log: str) -> int:
        """Starts a command of the run; returns its process id. log: where it goes on the supervisor's own node."""
        self.kill_group()
        command = [word.replace(HOST, self._host) for word in argv]
        if self._own:
            command[command.index("--run") + 1] = str(self._folder)
            if "worker" in command and "--link" not in command and LINK_LABEL in self._labels:
                command += ["--link", str(float(self._labels[LINK_LABEL]) / 1000)]
            for ending in (*REPORTED, ".alive"):
                self._written(ending).unlink(missing_ok=True)
        with open_log(self._log if self._own else Path(log)) as opened:
            self._process = subprocess.Popen(
                [sys.executable, *command[1:]],
                cwd=self._folder if self._own else self._job["working_directory"],
                env={**os.environ, **environment, SUPERVISED: str(os.getpid())},
                stdin=subprocess.DEVNULL,
                stdout=opened,
                stderr=opened,
                process_group=0,
            )
        return self._process.pid

    def look(self, log_from: int) -> SeenProcess:
        """What the process has done; log_from: bytes of its log that the supervisor has."""
        assert self._process is not None
        status = self._process.poll()
        if not self._own:
            return SeenProcess(status=status, touched=0, files={}, log=b"")
        files: dict[str, str] = {}
        touched = 0
        with suppress(OSError):
            touched = self._written(".alive").stat().st_mtime_ns
        for ending in REPORTED:
            with suppress(OSError):
                files[ending] = self._written(ending).read_text()
        with self._log.open("rb") as log:
            log.seek(log_from)
            return SeenProcess(status=status, touched=touched, files=files, log=log.read(LOG_BYTES))

    def send_signal(self, number: int) -> None:
        """Sends a signal to this process only."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def kill_group(self) -> None:
        """Kills the process and whatever it started in its group."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def close(self) -> None:
        """Leaves nothing behind on this node."""
        self.kill_group()
        if self._own:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def _written(self, ending: str) -> Path:
        return self._folder / "endpoints" / f"{self._job['name']}{ending}"

    def _write_job(self) -> None:
        settings = Settings.model_validate_json(self._job["settings"])
        stream = settings.stream
        if self._job["schema"]:
            (self._folder / SCHEMA).write_text(self._job["schema"])
            stream = stream.model_copy(update={"schema_name": str(self._folder / SCHEMA)})
        keys = self._folder / KEYS
        keys.mkdir(mode=0o700)
        for name, content in self._job["keys"].items():
            file = keys / name
            file.touch(mode=0o600)
            file.write_bytes(content)
        telemetry = settings.telemetry
        if telemetry.metrics_host == ANY_HOST:  # Prometheus is told where this node is
            telemetry = telemetry.model_copy(update={"metrics_host": self._host})
        own = {"folder": self._folder, "curve_folder": keys, "stream": stream, "telemetry": telemetry}
        store_settings(settings.model_copy(update=own))

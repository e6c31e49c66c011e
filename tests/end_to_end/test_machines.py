"""The recipe for several machines, as docs/operations.md prints it, each machine a folder of this one."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from api.runs.places import find_folders, find_runs
from infra.base.process import Stop
from infra.base.run_folder import AGENT, read_endpoint
from ingest.config import StreamConfig
from ingest.kafka.config import KafkaConfig
from ingest.main import ProducerJob, run_producer
from tests.api.serving import Served
from tests.end_to_end.processes import ROOT, WAIT_SECONDS, environment, wait_until
from tests.ports import free_port

SECTION = re.compile(r"^## Several machines\n(.*?)^An agent can also start whole runs", re.DOTALL | re.MULTILINE)
COMMANDS = re.compile(r"^```\n((?:freshet|export) .*?)^```", re.DOTALL | re.MULTILINE)
SETTINGS = re.compile(r"^```toml\n(run = .*?)^```", re.DOTALL | re.MULTILINE)
SERVERS = ("dispatcher", "ps-0", "ps-1", "serve")
SAMPLES = 64 * 40
LOOKS = (("token", "create"), ("runs", "list"), ("workers", "list"))


def recipe() -> tuple[str, list[str]]:
    """(the settings file, every command) of the section."""
    (section,) = SECTION.findall((ROOT / "docs" / "operations.md").read_text())
    (settings,) = SETTINGS.findall(section)
    return settings, [line for block in COMMANDS.findall(section) for line in block.strip().splitlines()]


class Machines:
    """Folders in place of machines: each has the settings, its own keys, and whatever is started there."""

    def __init__(self, place: Path) -> None:
        self._place = place
        text, self._commands = recipe()
        addresses = {address: f"tcp://127.0.0.1:{free_port()}" for address in re.findall(r"tcp://[\d.:]+", text)}
        for address, here in addresses.items():
            text = text.replace(address, here)
        text = text.replace("s3://models/edge", f"{place}/checkpoints").replace('"kafka"', '"log"')
        self._text = re.sub(r"postgresql://[^\"]+", f"sqlite:///{place}/tokens.db", text)
        path = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
        small = {"STREAM__BATCH": "64", "STREAM__LINGER_SECONDS": "0.1", "MODEL__MLP": "8", "API__PORT": "0"}
        more = {"STREAM__FOLDER": f"{place}/log", "SERVING__PORT": "0"}
        self._env = {**environment(), "PATH": path, **{f"FRESHET_{k}": v for k, v in (small | more).items()}}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def printed(self, *words: str) -> str:
        """The one command of the recipe that has these words."""
        (found,) = (command for command in self._commands if set(words) <= set(command.split()))
        return found

    def make_keys(self) -> None:
        machine = self._machine("dispatcher")
        self.run("dispatcher", self.printed("keys"))
        for name in (*SERVERS[1:], "edge-0", "edge-1"):
            secrets = self._machine(name) / "secrets"
            secrets.mkdir(mode=0o700)
            kept = ("server.secret", "*.public") if name in SERVERS else (f"{name}.secret", "server.public")
            for file in (file for pattern in kept for file in (machine / "secrets").glob(pattern)):
                shutil.copy(file, secrets)

    def start(self, machine: str, command: str, name: str = "") -> "subprocess.Popen[bytes]":
        log = (self._place / f"{name or machine}.out").open("wb")
        with log:
            process = subprocess.Popen(
                command.split(), cwd=self._machine(machine), env=self._env, stdout=log, stderr=subprocess.STDOUT
            )
        self.running[name or machine] = process
        return process

    def run(self, machine: str, script: str) -> str:
        done = subprocess.run(
            ["bash", "-ec", script],
            cwd=self._machine(machine),
            env=self._env,
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    def endpoint(self, machine: str, folder: str, process: str) -> str | None:
        self.check()
        return read_endpoint(self._machine(machine) / folder, process)

    def check(self) -> None:
        """Fails with the output of a process that has ended."""
        ended = [name for name, process in self.running.items() if process.poll() is not None]
        assert ended == [], "\n".join((self._place / f"{name}.out").read_text() for name in ended)

    def _machine(self, name: str) -> Path:
        folder = self._place / name
        if not folder.is_dir():
            folder.mkdir()
            (folder / "freshet.toml").write_text(self._text)
        return folder


@contextmanager
def machines_in(place: Path) -> Iterator[Machines]:
    """Ends what was started there: the dispatcher in order, which dismisses workers, then the rest."""
    machines = Machines(place)
    try:
        yield machines
    finally:
        for process in machines.running.values():
            process.send_signal(signal.SIGTERM)
            process.wait(WAIT_SECONDS)


def leave_a_dead_agent(machines: Machines, place: Path) -> None:
    """An agent of the same run beside the dispatcher, killed: its folder stays."""
    agent = machines.start("dispatcher", machines.printed("agent"), "agent")
    runs = place / "dispatcher" / "runs"
    wait_until(lambda: any(read_endpoint(folder, AGENT) for folder in find_folders(runs)) or agent.poll() is not None)
    agent.kill()
    agent.wait()
    del machines.running["agent"]
    assert len(find_folders(runs)) == 1
    assert find_runs(runs) == {}


@pytest.mark.timeout(600)
def test_the_printed_commands_train_on_several_machines_and_api_and_servers_find_the_run(tmp_path: Path) -> None:
    run_producer(ProducerJob(StreamConfig(folder=tmp_path / "log"), KafkaConfig(), limit=SAMPLES), Stop())
    with machines_in(tmp_path) as machines:
        machines.make_keys()
        leave_a_dead_agent(machines, tmp_path)
        machines.start("dispatcher", machines.printed("dispatcher"))
        for number in range(2):
            machines.start(f"ps-{number}", machines.printed("ps", f"ps-{number}"))
            machines.start(f"edge-{number}", machines.printed("worker", f"edge-{number}"))
        machines.start("dispatcher", machines.printed("api"), "api")
        machines.start("serve", machines.printed("serve"))
        wait_until(lambda: machines.endpoint("dispatcher", "runs", "api") is not None)
        wait_until(lambda: machines.endpoint("serve", "runs/local", "serve") is not None)
        look_around(machines)


def look_around(machines: Machines) -> None:
    """What the recipe prints last, and a prediction, once the run trains."""
    make_token, runs_list, workers_list = (machines.printed(*words) for words in LOOKS)
    token = machines.run("dispatcher", f"{make_token}\necho $FRESHET_TOKEN").strip()
    api = Served(machines.endpoint("dispatcher", "runs", "api") or "", token, "")
    # beside other tests a request may be answered 503 for a moment, without items
    wait_until(lambda: (api.get("/v1/runs").json.get("items") or [{"samples": 0}])[0]["samples"] == SAMPLES)
    shown = machines.run("dispatcher", f"export FRESHET_TOKEN={token}\n{runs_list}\n{workers_list}")
    found = dict(line.split()[:2] for line in shown.splitlines() if line.startswith("edge"))
    assert set(found) == {"edge", "edge-0", "edge-1"}, shown
    assert found["edge"] in ("training", "waiting"), shown
    server = Served(machines.endpoint("serve", "runs/local", "serve") or "", token, "")
    wait_until(lambda: server.ask("POST", "/v1/predict", {"fields": {"user": "u17"}}).status == 200)

"""A Ray cluster of several nodes, each in a network namespace behind a link of its own."""

import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from infra.run.network import Network
from infra.run.nodes.placing import HEALTH
from tests.end_to_end.processes import ROOT, environment, freshet

PORT = 6379
CPUS = 8
"""What each node says it has; they share the cores of this machine."""
START_SECONDS = 200.0
STARTS = 5
STARTED = "Ray runtime started."
WAIT_FOR_NODES = """
import sys, time
import ray
ray.init(address="auto", logging_level="ERROR", log_to_driver=False)
while sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[1]):
    time.sleep(0.3)
"""
LABELS = ("", "", "freshet-role=edge,freshet-link-mbit=50")
LINKS_GBIT = (0.5, 0.5, 0.05)


@dataclass(frozen=True)
class Cluster:
    """The nodes; the first one is the head."""

    network: Network
    place: Path
    environment: dict[str, str]
    address: str
    nodes: list["subprocess.Popen[bytes]"]

    def inside(self, number: int) -> list[str]:
        """The prefix of a command that runs on the machine of a node."""
        (first,) = psutil.Process(self.nodes[number].pid).children()
        return ["nsenter", "--target", str(first.pid), "--net", "--pid", "--mount"]

    def machine(self, number: int) -> list[str]:
        """The prefix of a node's own command: a machine with its own network, processes and temporary files."""
        own = self.place / f"t-{number}"
        own.mkdir(exist_ok=True)
        apart = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
        mount = ["sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"', str(own), self.environment["TMPDIR"]]
        return [*self.network.inside(number), *apart, *mount]

    def start(self, *arguments: str | Path, node: int = 0) -> "subprocess.Popen[str]":
        """Starts a command on the machine of a node, by default the head's."""
        return subprocess.Popen(
            [*self.inside(node), *freshet(*arguments)],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def start_node(self, command: Sequence[str], log: Path) -> None:
        """Starts a node of Ray; on a busy machine its own limit of 30 s may pass, and it is started again."""
        for _ in range(STARTS):
            with log.open("wb") as out:
                node = subprocess.Popen(command, env=self.environment, stdout=out, stderr=subprocess.STDOUT)
            self.nodes.append(node)
            while node.poll() is None and STARTED not in log.read_text():
                time.sleep(0.1)
            if node.poll() is None:
                return
            _end_all([self.nodes.pop()])
        raise AssertionError(log.read_text())

    def kill_node(self, number: int) -> None:
        """Kills all processes of a node at once, as if its machine had lost power."""
        (first,) = psutil.Process(self.nodes[number].pid).children()
        first.kill()

    @contextmanager
    def cut_off(self, number: int) -> Iterator[None]:
        """Inside, nothing reaches a node, and it reaches nobody."""
        link = ["ip", "link", "set", self.network.links[number]]
        subprocess.run([*link, "down"], check=True)
        try:
            yield
        finally:
            subprocess.run([*link, "up"], check=True)

    def wait_for_nodes(self, alive: int) -> None:
        """Asks until there are as many."""
        done = subprocess.run(
            [*self.inside(0), sys.executable, "-W", "ignore", "-c", WAIT_FOR_NODES, str(alive)],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
        )
        assert done.returncode == 0, done.stderr


@contextmanager
def ray_cluster(
    place: Path, network: Network, labels: Sequence[str] = LABELS, head_cpus: int = CPUS
) -> Iterator[Cluster]:
    """Starts a node for each label, one in each namespace; ends them, and what they started, by their process ids.

    head_cpus: what the head says it has; with 0 it gets no process.
    """
    with ExitStack() as undo:
        subnet = network.host.rpartition(".")[0]
        address = f"{subnet}.2:{PORT}"
        health = {f"RAY_{name}": str(value) for name, value in HEALTH.items()}
        own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
        env = environment() | health | own | {"RAY_ADDRESS": address, "TMPDIR": str(place / "t")}
        (place / "t").mkdir(exist_ok=True)
        cluster = Cluster(network, place, env, address, [])
        undo.callback(_end_all, cluster.nodes)
        for number, label in enumerate(labels):
            head = ["--head", f"--port={PORT}", "--include-dashboard=false"] if not number else [f"--address={address}"]
            ip = f"--node-ip-address={subnet}.{number + 2}"
            command = [
                str(Path(sys.executable).with_name("ray")),
                "start",
                *head,
                ip,
                "--block",
                f"--num-cpus={CPUS if number else head_cpus}",
            ]
            command += [f"--labels={label}"] if label else []
            command += ["--object-store-memory=80000000"]
            cluster.start_node([*cluster.machine(number), *command], place / f"node-{number}.out")
        cluster.wait_for_nodes(len(labels))
        yield cluster


def actor_of(process: str) -> psutil.Process:
    """The actor that started a process of a run."""
    (found,) = (each for each in psutil.process_iter() if _is_named(words_of(each), process))
    parent = found.parent()
    assert parent is not None
    return parent


def processes_in(network: Network, node: int) -> list[psutil.Process]:
    """All processes of a namespace."""
    listed = subprocess.run(["ip", "netns", "pids", network.names[node]], capture_output=True, text=True, check=True)
    found = []
    for pid in map(int, listed.stdout.split()):
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found


def _is_named(words: Sequence[str], process: str) -> bool:
    return "infra.cli.entry" in words and "--name" in words and words[words.index("--name") + 1] == process


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _end_all(nodes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Ends the nodes, and what they have started."""
    for node in nodes:
        started = psutil.Process(node.pid).children(recursive=True) if node.poll() is None else []
        node.terminate()
        _, left = psutil.wait_procs([*started, psutil.Process(node.pid)] if node.poll() is None else started, 20)
        for process in left:
            process.kill()
        node.wait()

"""A live run that is served: predictions follow training, whoever is killed; who asks twice gets an answer."""

import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from infra.base.storage import Storage
from infra.run.supervision.nursery import as_started
from infra.web.store.place import database_url
from ps.checkpoints.manifest import manifest_numbers
from ps.checkpoints.served import read_served, served_now
from tests.api.serving import Served, new_token, until
from tests.end_to_end.processes import named, start, wait_until

SETTINGS = (
    *("stream.batch=64", "dispatch.workers=1", "dispatch.links_gbit=", "ps.shards=1", "run=shown"),
    *("checkpoints.seconds=0.5", "serving.port=0", "serving.processes=2", "api.port=0", "model.mlp=8"),
)
EVENT = {"fields": {"user": 1, "item": 2}}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A demo that serves."""
    folder = tmp_path_factory.mktemp("served") / "run"
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    process = start("demo", "--serve", "--rate", "500", "--run", folder, *settings)
    try:
        wait_until(lambda: all((folder / "endpoints" / name).exists() for name in ("serve", "serve-1")), process)
        server = server_of(folder)
        # Each request may reach either of the two.
        until(lambda: all(server.get("/readyz").status == 200 for _ in range(20)))
        yield folder
    finally:
        process.terminate()
        output, _ = process.communicate(timeout=100)
        assert process.returncode == 0, output
        assert named(folder, ["serve"]) == []


def server_of(folder: Path) -> Served:
    database = database_url(None, folder)
    return Served((folder / "endpoints" / "serve").read_text(), new_token(database, ["predict", "read"]), database)


@dataclass
class Client:
    """Asks on one connection, so of one server, until that ends; then once more on another one."""

    server: Served
    answers: int = 0
    connections: int = 0
    snapshots: list[tuple[int, int]] = field(default_factory=list)
    """of the present connection"""
    faults: list[str] = field(default_factory=list)

    def ask_until(self, is_over: threading.Event) -> None:
        while not is_over.is_set():
            try:
                self._ask_on_one(is_over)
            except (OSError, http.client.HTTPException) as error:
                if not self.snapshots:  # a second time, without an answer in between
                    self.faults.append(repr(error))
                    return

    def _ask_on_one(self, is_over: threading.Event) -> None:
        self.snapshots = []
        self.connections += 1
        connection = http.client.HTTPConnection(urlsplit(self.server.address).netloc, timeout=100)
        headers = {"Authorization": f"Bearer {self.server.token}"}
        try:
            while not is_over.wait(0.01):
                connection.request("POST", "/v1/predict", json.dumps(EVENT), headers)
                answer = connection.getresponse()
                content = answer.read()
                if answer.status != 200:
                    self.faults.append(f"{answer.status} {content!r}")
                    return
                snapshot = json.loads(content)["snapshot"]
                self.snapshots.append((snapshot["timeline"], snapshot["step"]))
                self.answers += 1
                if self.snapshots[-2:] != sorted(self.snapshots[-2:]):
                    self.faults.append(f"went back: {self.snapshots[-2:]}")
        finally:
            connection.close()


@contextmanager
def asking(server: Served, number: int = 4) -> Iterator[list[Client]]:
    """Clients that ask all the time; in the end none of them has met an error twice."""
    clients, is_over = [Client(server) for _ in range(number)], threading.Event()
    threads = [threading.Thread(target=client.ask_until, args=(is_over,)) for client in clients]
    for thread in threads:
        thread.start()
    try:
        yield clients
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert [fault for client in clients for fault in client.faults] == []


def test_predictions_follow_the_training(live: Path) -> None:
    server = server_of(live)
    first = server.ask("POST", "/v1/predict", EVENT).json["snapshot"]["step"]
    until(lambda: server.ask("POST", "/v1/predict", EVENT).json["snapshot"]["step"] > first)
    assert server.ask("POST", "/v1/predict", EVENT).json["snapshot"]["checkpoint"] <= newest(live)


def test_each_server_has_on_record_what_it_serves(live: Path) -> None:
    storage = Storage.at(live / "checkpoints")
    until(lambda: {record.checkpoint > 0 for record in served_now(storage, time.time())} == {True})
    assert [read_served(storage, name) is not None for name in ("serve", "serve-1")] == [True, True]


def test_a_server_that_is_killed_under_load_costs_no_answer_and_comes_back_on_its_port(live: Path) -> None:
    server = server_of(live)
    until(lambda: len(named(live, ["serve"])) == 2)
    with asking(server) as clients:
        until(lambda: all(client.answers > 20 for client in clients))
        killed = [kill_server(live, number) for number in (0, 1)]
        before = [client.answers for client in clients]
        until(lambda: all(client.answers > count + 20 for client, count in zip(clients, before, strict=True)))
    assert sum(client.connections for client in clients) > len(clients)
    assert server_of(live).address == server.address
    assert not {process.pid for process in named(live, ["serve"])} & set(killed)


def kill_server(live: Path, number: int) -> int:
    """Kills one of the two, and waits until both are there again: until the new one has told its address."""
    name = ("serve", "serve-1")[number]
    address = live / "endpoints" / name
    told_at = address.stat().st_mtime_ns
    (process,) = [each for each in named(live, ["serve"]) if name_of(each) == name]
    os.kill(process.pid, signal.SIGKILL)
    process.wait(30)
    until(lambda: is_newer(address, told_at))
    return int(process.pid)


def is_newer(file: Path, written_at: int) -> bool:
    """Whether it was written again; the supervisor removes it meanwhile."""
    with suppress(FileNotFoundError):
        return file.stat().st_mtime_ns != written_at
    return False


@pytest.mark.parametrize("name", ["dispatcher", "ps-0", "worker-0"])
def test_serving_goes_on_while_a_run_recovers_and_follows_it_again(live: Path, name: str) -> None:
    with asking(server_of(live), 2) as clients:
        until(lambda: all(client.snapshots for client in clients))
        at = max(client.snapshots[-1] for client in clients)
        (process,) = [each for each in named(live, [name]) if name_of(each) == name]
        os.kill(process.pid, signal.SIGKILL)
        process.wait(30)
        until(lambda: all(client.snapshots and client.snapshots[-1] > at for client in clients))


def name_of(process: psutil.Process) -> str:
    argv = as_started(process.cmdline())
    return argv[argv.index("--name") + 1]


def newest(live: Path) -> int:
    return manifest_numbers(Storage.at(live / "checkpoints"))[-1]

"""Other users and other programs of the machine, against real processes: nobody but its owner steers a run, and a
program that takes a port of the run keeps no process from ending."""

import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import zmq

from dispatch.journal.history import read_history
from dispatch.journal.log import read_records
from dispatch.journal.records import Commanded
from infra.base.wire import Codec, bind
from infra.run.agent.running import CONTROL_LINE
from ingest.config import StreamConfig
from ps.protocol import Serve
from tests.end_to_end.living import given, producing
from tests.end_to_end.processes import ROOT, environment, named, run, start, wait_until
from tests.sockets import RefusingStranger, receive_from

RUN = "owned"
SETTINGS = (f"run={RUN}", "stream.batch=64", "rows.dim=4", "dispatch.workers=1", "ps.shards=1", "api.port=0")
FURTHER = 3


class OwnedRun:
    """A run with default endpoints, in a folder that everybody may read, as folders of runs are."""

    def __init__(self, place: Path) -> None:
        self.folder, self.stream = place / "run", StreamConfig(folder=place / "log", partitions=1)
        settings = given(*SETTINGS, f"stream.folder={self.stream.folder}")
        self.process = start("up", "--run", self.folder, *settings)
        self.wait_for_steps(FURTHER)

    def step(self) -> int:
        return read_history(self.folder / "journal").step

    def wait_for_steps(self, more: int) -> None:
        until = (self.step() if (self.folder / "journal").is_dir() else 0) + more
        wait_until(lambda: (self.folder / "journal").is_dir() and self.step() >= until, self.process)

    @property
    def announced(self) -> Path:
        return self.folder / "endpoints" / "dispatcher"

    def control(self) -> str:
        return self.announced.read_text().split()[CONTROL_LINE]

    def commands(self) -> list[tuple[str, str]]:
        """Verb and actor of every command on record."""
        records = read_records(self.folder / "journal")
        return [(record.verb, record.actor) for record in records if isinstance(record, Commanded)]

    def restart_dispatcher(self) -> None:
        (dispatcher,) = named(self.folder, ["dispatcher"])
        dispatcher.kill()
        with suppress(psutil.NoSuchProcess):
            dispatcher.wait(60)
        self.wait_for_steps(FURTHER)


@pytest.fixture
def owned() -> Iterator[OwnedRun]:
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        Path(place).chmod(0o755)
        with producing(StreamConfig(folder=Path(place) / "log", partitions=1)):
            run_under_way = OwnedRun(Path(place))
            try:
                yield run_under_way
            finally:
                run_under_way.process.kill()
                run_under_way.process.communicate()


def try_as_a_stranger(owned: OwnedRun) -> list[str]:
    """What another user is told who tries to pause the run."""
    command = [sys.executable, "-m", "tests.end_to_end.stranger", str(owned.folder), RUN, owned.control()]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told: list[str] = json.loads(done.stdout)
    return told


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_cannot_pause_a_run_and_its_owner_can(owned: OwnedRun) -> None:
    found, told = try_as_a_stranger(owned)
    assert "Permission denied; expected permission to use it" in found
    assert "Permission denied; expected the user and the machine of a run that is under way" in told
    assert owned.commands() == []
    sockets = Path(owned.control().removeprefix("ipc://")).parent
    assert stat.S_IMODE(owned.announced.stat().st_mode) == 0o600
    assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    owned.restart_dispatcher()
    assert owned.control() == f"ipc://{sockets}/control"
    for verb in ("pause", "resume"):
        done = run(verb, "--run", owned.folder)
        assert done.returncode == 0, done.stderr
    owned.wait_for_steps(FURTHER)
    assert owned.commands() == [("pause", "root"), ("resume", "root")]
    owned.process.terminate()
    output, _ = owned.process.communicate(timeout=300)
    assert owned.process.returncode == 0, output
    assert not sockets.exists()


@contextmanager
def started(*arguments: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """One process of a run, started by hand."""
    process = start(*arguments, *given(f"folder={folder}", "run=r"))
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_shard_finds_its_dispatcher_again_whose_port_a_stranger_had_and_ends_while_one_has_it(tmp_path: Path) -> None:
    with RefusingStranger() as stranger:
        at = "--endpoint", "tcp://127.0.0.1:*", "--dispatcher", stranger.endpoint
        with started("ps", "--shard", "0", *at, folder=tmp_path) as shard:
            wait_until(lambda: stranger.refused >= 2, shard)
            stranger.close()
            with zmq.Context() as context, context.socket(zmq.ROUTER) as dispatcher:
                dispatcher.set(zmq.LINGER, 0)
                bind(dispatcher, stranger.endpoint)
                assert dispatcher.poll(300_000), "the shard does not offer itself"
                assert receive_from(dispatcher, Codec(Serve))[1].run == "r"
            with RefusingStranger(stranger.port) as again:
                wait_until(lambda: again.refused >= 2, shard)
                shard.terminate()
                assert shard.wait(300) == 0


def test_a_worker_whose_dispatchers_port_a_stranger_has_ends_when_it_is_told(tmp_path: Path) -> None:
    with (
        RefusingStranger() as stranger,
        started("worker", "--name", "w", "--dispatcher", stranger.endpoint, folder=tmp_path) as worker,
    ):
        wait_until(lambda: stranger.refused >= 2, worker)
        worker.terminate()
        assert worker.wait(100) == 0

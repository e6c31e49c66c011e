"""A bad day of a run in real processes with Kafka, PostgreSQL, two servers, a device and others who ask.

    python -m tests.control_plane.bad_day

One after the other, while a device sends and readers ask:

1. all labels become 0: snapshots are held back
2. both servers are killed when every snapshot that retention keeps by number is held back: the same snapshot is served
3. labels are right again: a newer snapshot goes out
4. somebody starts a second shard and a second worker under names that are taken
5. a file of the newest checkpoint cannot be read, and a worker is killed
6. a request is sent three times under one key, and the API is killed in between

Prints a table, and exits with 1 if anything was not as promised: no answer from a snapshot that was held back, none
from an older one than before, no 5xx to who asks twice, every event that was accepted trained once.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil
from rich.console import Console
from rich.table import Table

from dispatch.journal.history import read_history
from infra.base.errors import FreshetError
from infra.base.process import SUPERVISED, Stop
from infra.base.storage import Storage
from infra.chaos.clients import CLASSES, TOKEN_NAME, ClientJob, Device, Kind, ServerByName
from infra.chaos.clients import main as run_client
from infra.chaos.main import end, verified
from infra.chaos.promises import check_promises
from infra.chaos.witness import Witness
from infra.run.settings import TOKEN, read_stored
from infra.verify.leftovers import processes_of
from infra.web.store.access import make_token
from infra.web.store.place import database_url
from infra.web.store.rows import SCOPES
from ingest.codec.json_events import encode_json
from ingest.convert import Event
from ingest.producing.synthetic import synthetic_events
from ps.checkpoints.manifest import manifest_numbers
from tests.brokers import running_broker
from tests.control_plane.outage import say
from tests.databases import running_postgres
from tests.end_to_end.living import given
from tests.end_to_end.processes import ROOT, environment, freshet, start

RUN, RATE = "bad-day", 800.0
KEPT = 2
SETTINGS = (
    *(f"run={RUN}", "stream.batch=128", "stream.partitions=2", "rows.dim=8", "api.port=0", "serving.port=0"),
    *("dispatch.workers=2", "ps.shards=1", "checkpoints.seconds=2", f"checkpoints.kept={KEPT}"),
)
WAIT_SECONDS = 300.0
LOOK_SECONDS = 0.2
FURTHER = 20
"""steps in which a run shows that it goes on"""
NO_CLICKS = "no-clicks"
"""a file in the run's folder: while it is there, the device sends no click"""
SECOND = "serve-b"
SENT_TIMES = 3
MOST_TRIES = 5
"""to have a checkpoint be the newest that a recovery finds"""


class ForgetfulDevice(Device):
    """Loses all clicks while a file is there."""

    def events(self) -> Iterator[Event]:
        return map(self._reported, super().events())

    def _reported(self, event: Event) -> Event:
        has_lost = (Path(self.job.folder) / NO_CLICKS).exists()
        return msgspec.structs.replace(event, label=0) if has_lost else event


class Seen(NamedTuple):
    """One thing that happened, and what came of it."""

    what: str
    found: str
    ok: bool


@dataclass
class BadDay:
    """The run and everybody around it."""

    folder: Path
    env: dict[str, str]
    token: str
    run: "subprocess.Popen[bytes]"
    second: "subprocess.Popen[bytes]"
    """the server that no supervisor restarts"""
    witness: Witness
    seen: list[Seen] = field(default_factory=list)
    clients: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    # ── looking ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def wait(self, what: str, condition: Callable[[], Any]) -> Any:
        """Until it holds; whatever cannot be asked now does not hold."""
        until = time.monotonic() + WAIT_SECONDS
        while True:
            with suppress(FreshetError, OSError):
                if found := condition():
                    return found
            assert self.run.poll() is None, f"the run ended with status {self.run.returncode}: {what}"
            assert time.monotonic() < until, f"waited in vain: {what}"
            time.sleep(LOOK_SECONDS)

    def note(self, what: str, found: str, ok: bool) -> None:
        self.seen.append(Seen(what, found, ok))
        say(f"{'ok' if ok else 'violated'}: {what}: {found}")

    def current(self, server: str) -> dict[str, Any] | None:
        """What a server serves; None while it does not answer."""
        asked = ServerByName(self.folder, server, self.token)
        try:
            answer = asked.ask("GET", "/v1/snapshots/current")
            return answer.json() if answer is not None and answer.is_success else None
        finally:
            asked.close()

    def checkpoint_of(self, server: str) -> int:
        told = self.current(server)
        return 0 if told is None else int(told["snapshot"]["id"]["checkpoint"])

    def step(self) -> int:
        return read_history(self.folder / "journal").step

    def goes_on(self, what: str) -> int:
        """Waits for further steps; returns the newest."""
        until = self.step() + FURTHER
        self.wait(f"{FURTHER} further steps after {what}", lambda: self.step() >= until)
        return self.step()

    def process(self, name: str) -> psutil.Process:
        return dict(processes_of(self.folder))[name]

    def checkpoints(self) -> list[int]:
        return manifest_numbers(Storage.at(self.folder / "checkpoints"))

    # ── what happens ──────────────────────────────────────────────────────────────────────────────────────────────────
    def begin(self) -> None:
        self.wait("snapshots of both servers", lambda: self.checkpoint_of("serve") and self.checkpoint_of(SECOND))
        first = self.checkpoint_of("serve")
        self.wait(
            "newer snapshots", lambda: min(self.checkpoint_of("serve"), self.checkpoint_of(SECOND)) > first + KEPT
        )

    def lose_clicks(self) -> None:
        """1 and 2 of the list above."""
        last = max(self.witness.checkpoints)
        (self.folder / NO_CLICKS).touch()
        began = time.monotonic()
        held = self.wait("a snapshot that is held back", lambda: self.held_after(last))
        self.note(
            "labels collapse to 0", f"checkpoint {held[0]} held back after {time.monotonic() - began:.1f} s", ok=True
        )
        there = set(self.checkpoints())
        self.wait(
            "checkpoints of that time to go", lambda: len(self.held_after(last)) > 2 * KEPT and self._is_outlived(there)
        )
        before = self.checkpoint_of("serve"), self.checkpoint_of(SECOND)
        why = (self.current("serve") or {})["failure"]
        self.note("why nothing newer is served", why, ok="held back" in why)
        self._kill_servers()
        after = self.wait(
            "both servers", lambda: (a := self.checkpoint_of("serve")) and (b := self.checkpoint_of(SECOND)) and (a, b)
        )
        newest = max(self.witness.checkpoints)
        self.note(
            "both servers killed",
            f"checkpoints {before} before, {after} after; the newest is {newest}",
            before == after,
        )

    def held_after(self, number: int) -> list[int]:
        """Checkpoints after that one that are held back."""
        seen = dict(self.witness.checkpoints).items()
        return sorted(
            checkpoint for checkpoint, manifest in seen if checkpoint > number and not manifest.verdict.is_good
        )

    def _is_outlived(self, there: set[int]) -> bool:
        """Whether of the checkpoints that were there only those are that are good."""
        left = there & set(self.checkpoints())
        return all(self.witness.checkpoints[number].verdict.is_good for number in left)

    def _kill_servers(self) -> None:
        for process in (self.process("serve"), psutil.Process(self.second.pid)):
            process.kill()
        self.second.wait()
        self.second = start_second(self.folder, self.env)

    def find_clicks(self) -> None:
        """3 of the list above."""
        before, began = max(self.witness.checkpoints), time.monotonic()
        (self.folder / NO_CLICKS).unlink()
        self.wait("a newer snapshot", lambda: min(self.checkpoint_of("serve"), self.checkpoint_of(SECOND)) > before)
        found = f"checkpoint {self.checkpoint_of('serve')} served after {time.monotonic() - began:.1f} s"
        self.note("labels are right again", found, ok=True)

    def start_strays(self) -> None:
        """4 of the list above."""
        supervised = {name: self.process(name).pid for name in ("ps-0", "worker-1")}
        dispatcher = (self.folder / "endpoints" / "dispatcher").read_text().split()[0]
        at = "--dispatcher", dispatcher, "--run", self.folder
        strays = {
            "ps-0": start("ps", "--shard", "0", "--name", "ps-0", "--endpoint", "tcp://127.0.0.1:*", *at),
            "worker-1": start("worker", "--name", "worker-1", *at),
        }
        for name, stray in strays.items():
            output, _ = stray.communicate(timeout=WAIT_SECONDS)
            last = output.strip().splitlines()[-1] if output.strip() else ""
            self.note(f"a second {name}", f"status {stray.returncode}: {last}", ok=stray.returncode != 0)
        step = self.goes_on("strays")
        is_same = all(self.process(name).pid == pid for name, pid in supervised.items())
        self.note("the run after strays", f"step {step}; its own processes stay: {is_same}", ok=True)

    def hide_a_file(self) -> None:
        """5 of the list above."""
        for _ in range(MOST_TRIES):
            log = self.folder / "logs" / "dispatcher.log"
            told = len(log.read_text())
            with hidden_files(self.folder / "checkpoints" / f"{self.checkpoints()[-1]:08d}") as number:
                worker = self.process("worker-0")
                worker.kill()
                step = self.goes_on("a file that cannot be read")
            if f"checkpoint {number} cannot be read" in log.read_text()[told:]:
                self.note(
                    "checkpoint that cannot be read, worker killed",
                    f"checkpoint {number}; goes on at step {step}",
                    ok=True,
                )
                return
        self.note(
            "checkpoint that cannot be read, worker killed", f"no recovery met it in {MOST_TRIES} tries", ok=False
        )

    def repeat_a_request(self) -> None:
        """6 of the list above."""
        job = self.client("device", "device-b", "api")
        device = Device(job, self.token, Stop())
        body = b"\n".join(encode_json(event) for event in islice(synthetic_events(7), device.size))
        for number in range(SENT_TIMES):
            device.send(0, body, repeated=number > 0)
            if not number:
                self.process("api").kill()
        device.finish()
        self.note(f"{device.size} events sent {SENT_TIMES} times", "see the log, below", ok=True)

    # ── clients ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def client(self, kind: Kind, name: str, server: str) -> ClientJob:
        return ClientJob(kind=kind, folder=str(self.folder), run=RUN, seed=1, rate=RATE, server=server, name=name)

    def start_clients(self) -> None:
        jobs = (
            *(self.client("device", "device", "api"), self.client("poller", "poller", "api")),
            *(self.client("reader", "reader", "serve"), self.client("reader", "reader-b", SECOND)),
        )
        for job in jobs:
            argument = msgspec.json.encode(job).decode()
            env = self.env | {TOKEN: self.token, SUPERVISED: str(os.getpid())}
            argv = [sys.executable, "-m", "tests.control_plane.bad_day", argument]
            self.clients.append(subprocess.Popen(argv, cwd=ROOT, env=env, start_new_session=True))

    def kill_clients(self) -> None:
        for process in self.clients:
            process.kill()
            process.wait()

    def finish(self) -> None:
        """Everybody ends in order; then all is checked."""
        for process in self.clients:
            status = end(process, WAIT_SECONDS)
            assert status == 0, f"a client ended with status {status}"
        end(self.second, WAIT_SECONDS)
        status = end(self.run, WAIT_SECONDS)
        self.note("the run is stopped", f"status {status}", ok=status == 0)
        self.witness.finish()
        for finding in (*verified(self.folder), *check_promises(self.folder, self.witness)):
            self.seen.append(Seen(finding.name, finding.found, finding.ok is not False))


@contextmanager
def hidden_files(folder: Path) -> Iterator[int]:
    """While inside, reading the files of a checkpoint fails; gives the number of the checkpoint."""
    files = [file for file in folder.iterdir() if file.is_file()]
    for file in files:
        file.rename(file.with_name(f"hidden-{file.name}"))
        file.mkdir()
    try:
        yield int(folder.name)
    finally:
        for file in files:
            with suppress(FileNotFoundError):  # retention has removed the checkpoint
                file.rmdir()
                file.with_name(f"hidden-{file.name}").rename(file)


def start_run(folder: Path, env: dict[str, str], output: Path) -> "subprocess.Popen[bytes]":
    command = freshet("up", "--kafka", "--serve", "--run", folder, *given(*SETTINGS))
    with output.open("ab") as file:
        return subprocess.Popen(command, cwd=ROOT, env=env, stdout=file, stderr=file, start_new_session=True)


def start_second(folder: Path, env: dict[str, str]) -> "subprocess.Popen[bytes]":
    command = freshet("serve", "--name", SECOND, "--run", folder, "--port", "0")
    with (folder / "second.log").open("ab") as file:
        return subprocess.Popen(command, cwd=ROOT, env=env, stdout=file, stderr=file, start_new_session=True)


def live(place: Path) -> list[Seen]:
    """All of it; returns what was seen."""
    with ExitStack() as undo:
        broker = undo.enter_context(running_broker(place / "broker"))
        postgres = undo.enter_context(running_postgres())
        folder, database = place / "run", postgres.new_database()
        env = environment() | {"FRESHET_KAFKA": broker.address, "FRESHET_API__DATABASE": database}
        run = start_run(folder, env, place / "up.log")
        undo.callback(lambda: end(run, WAIT_SECONDS))
        witness = Witness(folder)
        witness.start()
        undo.callback(witness.close)
        while not (folder / "endpoints" / "api").exists():
            assert run.poll() is None, (place / "up.log").read_text()
            time.sleep(LOOK_SECONDS)
        token = asyncio.run(make_token(database_url(read_stored(folder).api.database, folder), TOKEN_NAME, SCOPES))
        day = BadDay(folder, env, token, run, start_second(folder, env), witness)
        undo.callback(lambda: end(day.second, WAIT_SECONDS))
        undo.callback(day.kill_clients)
        day.start_clients()
        for part in (day.begin, day.lose_clicks, day.find_clicks, day.start_strays, day.hide_a_file):
            part()
        day.repeat_a_request()
        day.goes_on("everything")
        day.finish()
        return day.seen


def main() -> int:
    with tempfile.TemporaryDirectory() as place:
        began = time.monotonic()
        seen = live(Path(place))
    table = Table("what", "", "found", box=None)
    for each in seen:
        table.add_row(each.what, "ok" if each.ok else "violated", each.found)
    Console(width=120).print(table)
    say(f"{time.monotonic() - began:.0f} s")
    return 0 if all(each.ok for each in seen) else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_client(sys.argv[1], CLASSES | {"device": ForgetfulDevice})
    else:
        sys.exit(main())

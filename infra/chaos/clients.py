"""Clients of a run, each in a process of its own: a device, a reader of predictions, a poller of the API.

    python -m infra.chaos.clients '{"kind": "device", …}'

A client looks up where its server is at every try, asks again when it was not answered or refused for now, and writes
down what it was told, line by line, in the folder ``clients`` of the run. The token is in the environment.
"""

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any, Literal

import httpx2
import msgspec

from api.runs.requests import request_id
from infra.base.process import Stop, end_with_parent, stop_on_signals
from infra.run.settings import TOKEN
from ingest.codec.json_events import encode_json
from ingest.convert import Event
from ingest.producing.synthetic import synthetic_events

Kind = Literal["device", "reader", "poller"]
KINDS: tuple[Kind, ...] = ("device", "reader", "poller")
CLIENTS = "clients"
"""in the run's folder: what each client was told"""
ENDPOINTS = "endpoints"
TOKEN_NAME = "chaos"
"""whose token the clients have: part of what their requests are known by"""
REQUESTS_PER_SECOND = 5.0
"""of the device; its events are shared out among them"""
REPEATED_EVERY = 10
"""requests of the device, one of which is sent again although it was answered"""
READ_SAMPLES = 4
"""of a request of the reader"""
PAUSES: dict[Kind, float] = {"device": 0.0, "reader": 0.1, "poller": 0.5}
"""between two turns, in seconds"""
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
LOST_SECONDS = 0.2
"""until the next try after one without an answer"""
REFUSED_SECONDS = 1.0
"""the same after one that was refused for now, unless the answer says how long"""
LAST_SECONDS = 120.0
"""that a client which is to stop goes on asking for the answer to its last request"""
TOO_MANY = 429
CONFLICT = 409
SERVER_ERROR = 500


class ClientJob(msgspec.Struct, frozen=True, kw_only=True):
    """What one client is to do."""

    kind: Kind
    folder: str
    """of the run"""
    run: str
    seed: int
    rate: float
    """events a second that the device sends"""
    server: str
    """name of the process that it asks"""
    name: str
    """of the client"""

    @property
    def record(self) -> Path:
        """What it was told."""
        return Path(self.folder) / CLIENTS / f"{self.name}.jsonl"


# ── what clients write down ───────────────────────────────────────────────────────────────────────────────────────────
class SentRequest(msgspec.Struct, frozen=True, tag="sent"):
    """A request of the device, once it was answered or given up."""

    at_seconds: float
    """since 1970"""
    request: str
    """as the tags of its records name it, in hex"""
    events: int
    accepted: int
    """as it was answered; 0: it was not"""
    repeated: bool = False
    """sent again after it had been answered"""


class ReadVersion(msgspec.Struct, frozen=True, tag="version"):
    """Answers of one version that came one after the other."""

    first_seconds: float
    """since 1970"""
    last_seconds: float
    timeline: int
    step: int
    checkpoint: int
    answers: int


class AnsweredRequests(msgspec.Struct, frozen=True, tag="asked"):
    """How many requests were answered, since the client was started."""

    answered: int


class HardRequest(msgspec.Struct, frozen=True, tag="hard"):
    """A request that was not answered as hoped for at its first try."""

    at_seconds: float
    """when it was first sent, since 1970"""
    path: str
    statuses: tuple[int, ...]
    """of all answers to it, in order"""
    lost: int
    """tries without an answer"""
    seconds: float
    """until it was answered, or given up"""

    @property
    def most_errors(self) -> int:
        """Answers of 500 and above that came one after the other."""
        most = errors = 0
        for status in self.statuses:
            errors = errors + 1 if status >= SERVER_ERROR else 0
            most = max(most, errors)
        return most


Told = SentRequest | ReadVersion | AnsweredRequests | HardRequest


def read_told(path: Path) -> list[Told]:
    """What a client wrote down; the last line may be cut short if the client was killed."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [msgspec.json.decode(line, type=Told) for line in lines if line.endswith(b"\n")]


# ── asking ────────────────────────────────────────────────────────────────────────────────────────────────────────────
class ServerByName:
    """A server of a run, found by the address that it wrote down when it was ready, at every try."""

    def __init__(self, folder: Path, name: str, token: str) -> None:
        self._file = folder / ENDPOINTS / name
        self._http = httpx2.Client(
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            trust_env=False,
        )

    def ask(self, method: str, path: str, **more: Any) -> httpx2.Response | None:
        """One try; None: there was no answer."""
        try:
            return self._http.request(method, f"{self._file.read_text().strip()}{path}", **more)
        except (OSError, httpx2.HTTPError, httpx2.InvalidURL):
            return None

    def close(self) -> None:
        self._http.close()


class Client(ABC):
    """Asks one server, again and again, and writes down what it is told."""

    def __init__(self, job: ClientJob, token: str, stop: Stop) -> None:
        self.job = job
        self._stop = stop
        self._server = ServerByName(Path(job.folder), job.server, token)
        self._stops_at: float | None = None
        self._answered = 0
        job.record.parent.mkdir(parents=True, exist_ok=True)
        self._file = job.record.open("ab", buffering=0)

    def run(self) -> None:
        """Takes turns until it is to stop."""
        while not self._stop.requested:
            self.take_turn()
            self._stop.wait(PAUSES[self.job.kind])
        self.finish()

    @abstractmethod
    def take_turn(self) -> None:
        """One request, or a few that belong together."""

    def finish(self) -> None:
        """Writes down what was kept back, and closes what is open."""
        self.write(AnsweredRequests(self._answered))
        self._file.close()
        self._server.close()

    def write(self, told: Told) -> None:
        self._file.write(msgspec.json.encode(told) + b"\n")

    def ask(self, method: str, path: str, **more: Any) -> httpx2.Response | None:
        """Asks until it is answered, as often as it takes; None: it was to stop meanwhile, or was refused for good."""
        began = time.monotonic()
        began_at = time.time()
        statuses = list[int]()
        lost = 0
        while True:
            answer = self._server.ask(method, path, **more)
            if answer is None:
                lost += 1
            else:
                statuses.append(answer.status_code)
            if (answer is not None and not is_refused_for_now(answer.status_code)) or self._gives_up():
                break
            time.sleep(LOST_SECONDS if answer is None else pause_of(answer))
        is_good = answer is not None and answer.is_success
        self._answered += is_good
        if lost or len(statuses) > 1 or not is_good:
            self.write(HardRequest(began_at, path, tuple(statuses), lost, time.monotonic() - began))
        return answer if is_good else None

    def _gives_up(self) -> bool:
        """Whether it was to stop some time ago."""
        now = time.monotonic()
        if self._stops_at is None and self._stop.requested:
            self._stops_at = now + LAST_SECONDS
        return self._stops_at is not None and now > self._stops_at


def is_refused_for_now(status: int) -> bool:
    """Whether the same request may be answered later: a log that another process still holds is a conflict."""
    return status in (TOO_MANY, CONFLICT) or status >= SERVER_ERROR


def pause_of(answer: httpx2.Response) -> float:
    told = answer.headers.get("Retry-After", "")
    return float(told) if told.isdigit() else REFUSED_SECONDS


# ── the clients ───────────────────────────────────────────────────────────────────────────────────────────────────────
class Device(Client):
    """Sends events, each request under a key of its own; one that failed is repeated under the same key."""

    def __init__(self, job: ClientJob, token: str, stop: Stop) -> None:
        super().__init__(job, token, stop)
        self._events = synthetic_events(job.seed)
        self._numbers = count()
        self.size = max(1, round(job.rate / REQUESTS_PER_SECOND))
        """events of a request"""
        self._next_at = time.monotonic()

    def take_turn(self) -> None:
        number = next(self._numbers)
        body = b"\n".join(encode_json(event) for event in islice(self.events(), self.size))
        self.send(number, body, repeated=False)
        if number % REPEATED_EVERY == 0 and not self._stop.requested:
            self.send(number, body, repeated=True)
        self._next_at = max(self._next_at + self.size / self.job.rate, time.monotonic())
        self._stop.wait(self._next_at - time.monotonic())

    def events(self) -> Iterator[Event]:
        """Those that are still to be sent."""
        return self._events

    def send(self, number: int, body: bytes, repeated: bool) -> None:
        key = f"{self.job.name}-{number}"
        headers = {"Idempotency-Key": key, "Content-Type": "application/x-ndjson"}
        answer = self.ask("POST", "/v1/samples", content=body, headers=headers)
        accepted = 0 if answer is None else int(answer.json()["accepted"])
        request = request_id(TOKEN_NAME, key, body, self.size).request.hex()
        self.write(SentRequest(time.time(), request, self.size, accepted, repeated))


class Reader(Client):
    """Asks for predictions, from the first one that there is on, and notes which version answers."""

    def __init__(self, job: ClientJob, token: str, stop: Stop) -> None:
        super().__init__(job, token, stop)
        self._events = synthetic_events(job.seed)
        self._present: ReadVersion | None = None

    def take_turn(self) -> None:
        samples = [{"fields": event.fields} for event in islice(self._events, READ_SAMPLES)]
        if self._present is None:  # nothing is served before the first version, and nobody is told otherwise
            answer = self._server.ask("POST", "/v1/predict", json=samples)
            answer = answer if answer is not None and answer.is_success else None
            self._answered += answer is not None
        else:
            answer = self.ask("POST", "/v1/predict", json=samples)
        if answer is not None:
            self._note(answer.json()["version"])

    def finish(self) -> None:
        if self._present is not None:
            self.write(self._present)
        super().finish()

    def _note(self, version: dict[str, int]) -> None:
        now = time.time()
        present = self._present
        if present is not None and (present.timeline, present.step, present.checkpoint) == tuple(version.values()):
            self._present = msgspec.structs.replace(present, last_seconds=now, answers=present.answers + 1)
            return
        if present is not None:
            self.write(present)
        self._present = ReadVersion(now, now, version["timeline"], version["step"], version["checkpoint"], 1)


class Poller(Client):
    """Reads status and history of the run, over and over."""

    def __init__(self, job: ClientJob, token: str, stop: Stop) -> None:
        super().__init__(job, token, stop)
        parts = ("", "/steps", "/generations", "/checkpoints", "/faults", "/workers")
        self._paths = [f"/v1/runs/{job.run}{part}" for part in parts]
        self._turns = count()

    def take_turn(self) -> None:
        self.ask("GET", self._paths[next(self._turns) % len(self._paths)])


CLASSES: dict[Kind, type[Client]] = {"device": Device, "reader": Reader, "poller": Poller}


def main(argument: str, classes: dict[Kind, type[Client]] = CLASSES) -> None:
    stop = stop_on_signals()
    end_with_parent()
    job = msgspec.json.decode(argument, type=ClientJob)
    classes[job.kind](job, os.environ[TOKEN], stop).run()


if __name__ == "__main__":
    main(sys.argv[1])

"""Clients of a run, each in a separate process: a device, a reader of predictions, a poller of the API.

    python -m infra.chaos.clients '{"kind": "device", …}'

A client looks up the address of its server at every attempt, retries if it got no answer or was refused temporarily,
and records the answers, line by line, in the folder ``clients`` of the run. The token is in the environment.
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
"""Folder in the run's folder with the answers that each client got."""
ENDPOINTS = "endpoints"
TOKEN_NAME = "chaos"
"""Name of the clients' token, which is part of the identity of their requests."""
REQUESTS_PER_SECOND = 5.0
"""Requests of the device per second; its events are divided among them."""
REPEATED_EVERY = 10
"""One in this many requests of the device is sent again although it was answered."""
READ_SAMPLES = 4
"""Samples in a request of the reader."""
PAUSES: dict[Kind, float] = {"device": 0.0, "reader": 0.1, "poller": 0.5}
"""Seconds between two turns."""
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
LOST_SECONDS = 0.2
"""Time until the next attempt after one without an answer."""
REFUSED_SECONDS = 1.0
"""The same after a temporary refusal, unless the answer says how long."""
LAST_SECONDS = 120.0
"""How long a client that is to stop keeps asking for the answer to its last request."""
TOO_MANY = 429
CONFLICT = 409
SERVER_ERROR = 500


class ClientJob(msgspec.Struct, frozen=True, kw_only=True):
    """The job of one client."""

    kind: Kind
    folder: str
    """Folder of the run."""
    run: str
    seed: int
    rate: float
    """Events per second that the device sends."""
    server: str
    """Name of the process that it asks."""
    name: str
    """Name of the client."""

    @property
    def record(self) -> Path:
        """The file with its answers."""
        return Path(self.folder) / CLIENTS / f"{self.name}.jsonl"


# ── what clients write down ───────────────────────────────────────────────────────────────────────────────────────────
class SentRequest(msgspec.Struct, frozen=True, tag="sent"):
    """A request of the device, once it was answered or given up."""

    at_seconds: float
    """Time, in seconds since 1970."""
    request: str
    """Its name in the tags of its records, in hex."""
    events: int
    accepted: int
    """Number of accepted events in the answer; 0: there was none."""
    repeated: bool = False
    """Whether it was sent again after it had been answered."""


class ReadSnapshot(msgspec.Struct, frozen=True, tag="version"):  # files of earlier releases have this tag
    """Consecutive answers from one snapshot."""

    first_seconds: float
    """Time of the first, in seconds since 1970."""
    last_seconds: float
    timeline: int
    step: int
    checkpoint: int
    answers: int


class AnsweredRequests(msgspec.Struct, frozen=True, tag="asked"):
    """How many requests were answered since the client was started."""

    answered: int


class HardRequest(msgspec.Struct, frozen=True, tag="hard"):
    """A request whose first attempt did not succeed."""

    at_seconds: float
    """When it was first sent, in seconds since 1970."""
    path: str
    statuses: tuple[int, ...]
    """Status codes of all answers to it, in order."""
    lost: int
    """Attempts without an answer."""
    seconds: float
    """Time until it was answered, or given up."""

    @property
    def most_errors(self) -> int:
        """Most consecutive answers of 500 and above."""
        most = errors = 0
        for status in self.statuses:
            errors = errors + 1 if status >= SERVER_ERROR else 0
            most = max(most, errors)
        return most


Told = SentRequest | ReadSnapshot | AnsweredRequests | HardRequest


def read_told(path: Path) -> list[Told]:
    """What a client recorded; the last line may be truncated if the client was killed."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [msgspec.json.decode(line, type=Told) for line in lines if line.endswith(b"\n")]


# ── asking ────────────────────────────────────────────────────────────────────────────────────────────────────────────
class ServerByName:
    """A server of a run, found at every attempt by the address that it wrote when it was ready."""

    def __init__(self, folder: Path, name: str, token: str) -> None:
        self._file = folder / ENDPOINTS / name
        self._http = httpx2.Client(
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            trust_env=False,
        )

    def ask(self, method: str, path: str, **more: Any) -> httpx2.Response | None:
        """One attempt; None: there was no answer."""
        try:
            return self._http.request(method, f"{self._file.read_text().strip()}{path}", **more)
        except (OSError, httpx2.HTTPError, httpx2.InvalidURL):
            return None

    def close(self) -> None:
        self._http.close()


class Client(ABC):
    """Asks one server, again and again, and records its answers."""

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
        """Sends one request, or a few that belong together."""

    def finish(self) -> None:
        """Writes what was held back, and closes what is open."""
        self.write(AnsweredRequests(self._answered))
        self._file.close()
        self._server.close()

    def write(self, answer: Told) -> None:
        self._file.write(msgspec.json.encode(answer) + b"\n")

    def ask(self, method: str, path: str, **more: Any) -> httpx2.Response | None:
        """Asks until it is answered, as often as necessary; None: it was to stop meanwhile, or was
        refused permanently.
        """
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
        """Whether it was asked to stop some time ago."""
        now = time.monotonic()
        if self._stops_at is None and self._stop.requested:
            self._stops_at = now + LAST_SECONDS
        return self._stops_at is not None and now > self._stops_at


def is_refused_for_now(status: int) -> bool:
    """Whether the same request may be answered later: a log that another process still holds is a conflict."""
    return status in (TOO_MANY, CONFLICT) or status >= SERVER_ERROR


def pause_of(answer: httpx2.Response) -> float:
    seconds = answer.headers.get("Retry-After", "")
    return float(seconds) if seconds.isdigit() else REFUSED_SECONDS


# ── the clients ───────────────────────────────────────────────────────────────────────────────────────────────────────
class Device(Client):
    """Sends events, each request under a separate key; one that failed is repeated under the same key."""

    def __init__(self, job: ClientJob, token: str, stop: Stop) -> None:
        super().__init__(job, token, stop)
        self._events = synthetic_events(job.seed)
        self._numbers = count()
        self.size = max(1, round(job.rate / REQUESTS_PER_SECOND))
        """Events of a request."""
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
        """The events that are still to be sent."""
        return self._events

    def send(self, number: int, body: bytes, repeated: bool) -> None:
        key = f"{self.job.name}-{number}"
        headers = {"Idempotency-Key": key, "Content-Type": "application/x-ndjson"}
        answer = self.ask("POST", "/v1/samples", content=body, headers=headers)
        accepted = 0 if answer is None else int(answer.json()["accepted"])
        request = request_id(TOKEN_NAME, key, body, self.size).request.hex()
        self.write(SentRequest(time.time(), request, self.size, accepted, repeated))


class Reader(Client):
    """Requests predictions, from the first one that exists, and notes which snapshot answers."""

    def __init__(self, job: ClientJob, token: str, stop: Stop) -> None:
        super().__init__(job, token, stop)
        self._events = synthetic_events(job.seed)
        self._present: ReadSnapshot | None = None

    def take_turn(self) -> None:
        samples = [{"fields": event.fields} for event in islice(self._events, READ_SAMPLES)]
        if self._present is None:  # nothing is served before the first snapshot, which is not an error
            answer = self._server.ask("POST", "/v1/predict", json=samples)
            answer = answer if answer is not None and answer.is_success else None
            self._answered += answer is not None
        else:
            answer = self.ask("POST", "/v1/predict", json=samples)
        if answer is not None:
            self._note(answer.json()["snapshot"])

    def finish(self) -> None:
        if self._present is not None:
            self.write(self._present)
        super().finish()

    def _note(self, snapshot: dict[str, int]) -> None:
        now = time.time()
        present = self._present
        if present is not None and (present.timeline, present.step, present.checkpoint) == tuple(snapshot.values()):
            self._present = msgspec.structs.replace(present, last_seconds=now, answers=present.answers + 1)
            return
        if present is not None:
            self.write(present)
        self._present = ReadSnapshot(now, now, snapshot["timeline"], snapshot["step"], snapshot["checkpoint"], 1)


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

"""Every request of the client, described once as values; ``clients`` sends them, with and without asyncio.

A call is one request or several, and a function that makes the result of their answers. Every request may be sent
again: reads and predictions change nothing, and changes carry an idempotency key.
"""

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from freshet_client.answers import Prediction, RejectedRow, Sent, SnapshotName
from freshet_client.errors import InvalidInput
from freshet_client.rows import Rows, body_of, event_of, rows_of, sample_of

ResultT = TypeVar("ResultT")
PREDICT_ROWS = 1024
"""Rows of one request for predictions."""
SEND_ROWS = 2000
"""Events of one request."""
MOST_POINTS = 1000
"""Most points of a run's steps."""
RUN = "{run}"
"""Stands for the name of the run in a path."""
SERVED = "{served}"
"""Stands for where predictions and snapshots are: at a server, or at the API, which passes requests on."""


@dataclass(frozen=True)
class Request:
    """One request."""

    method: str
    path: str
    """With RUN and SERVED in place of what the client knows."""
    body: bytes | None = None
    key: str = ""
    """Idempotency key; empty: the request changes nothing."""
    run: str = ""
    """Name of the run; empty: the client's."""
    first: int = 0
    """Number of its first row among those that were given."""
    query: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Call(Generic[ResultT]):
    """Requests, sent one after the other, and what to make of their answers."""

    requests: tuple[Request, ...]
    result: Callable[[list[Any]], ResultT]


def target(request: Request, run: str, has_server: bool) -> str:
    """The path and query of a request, for a client with this run; raises InvalidInput if a run must be named.

    has_server: the address is that of a prediction server.
    """
    run = request.run or run
    served = "/v1" if has_server or not run else f"/v1/runs/{RUN}/served"
    path = request.path.replace(SERVED, served)
    if RUN in path and not run:
        raise InvalidInput(f"{request.method} {path} needs a run; expected its name; give run=")
    query = [*request.query, *([("run", run)] if path == "/v1/samples" and run else [])]
    return path.replace(RUN, quote(run, safe="")) + (f"?{urlencode(query)}" if query else "")


# ── predictions and events ────────────────────────────────────────────────────────────────────────────────────────────
def predict(rows: Rows, *, run: str = "", strict: bool = False, batch: int = PREDICT_ROWS) -> Call[Prediction]:
    """Predicts clicks: one row or many, as dicts or a table; label and time are not needed.

    strict: refuse fields that the schema does not know. batch: rows of one request.
    """
    samples = [sample_of(row) for row in rows_of(rows)]
    query = (("strict", "true"),) if strict else ()
    requests = tuple(
        Request("POST", f"{SERVED}/predict", body_of(samples[at : at + batch]), run=run, first=at, query=query)
        for at in range(0, len(samples), batch)
    )
    return Call(requests, _prediction)


def _prediction(answers: list[Any]) -> Prediction:
    names = [SnapshotName(**answer["snapshot"]) for answer in answers]
    unknown = (name for answer in answers for name in answer.get("unknown_fields", ()))
    return Prediction(
        probabilities=[chance for answer in answers for chance in answer["probabilities"]],
        snapshots=tuple(dict.fromkeys(names)),
        ids=[each for answer in answers for each in answer.get("ids", ())],
        unknown_fields=tuple(dict.fromkeys(unknown)),
    )


def send(
    rows: Rows,
    *,
    run: str = "",
    label: str = "label",
    event_time: str = "event_time",
    key: str = "",
    batch: int = SEND_ROWS,
) -> Call[Sent]:
    """Sends events to be trained, each once however often a request is repeated; returns when they are durable.

    label, event_time: names of the columns, in rows that are not events. key: identifies these events, so that
    another process may send the same rows again after a crash, within an hour; a new one if empty.
    """
    events = [event_of(row, label, event_time) for row in rows_of(rows)]
    key = key or uuid.uuid4().hex
    starts = range(0, len(events), batch)
    requests = tuple(
        Request("POST", "/v1/samples", body_of(events[at : at + batch]), key=f"{key}/{at}", run=run, first=at)
        for at in starts
    )
    return Call(requests, lambda answers: _sent(answers, starts))


def _sent(answers: list[Any], starts: Iterable[int]) -> Sent:
    rejected = [
        RejectedRow(first + each["index"], each["reason"])
        for first, answer in zip(starts, answers, strict=True)
        for each in answer["rejected"]
    ]
    return Sent(sum(answer["accepted"] for answer in answers), tuple(rejected))


def label(
    fields: Mapping[str, Any], clicked: bool, *, prediction: str = "", event_time: Any = None, run: str = ""
) -> Call[Sent]:
    """Sends the label of one event; prediction: the id under which it was predicted, if predictions are logged."""
    event = {"label": int(clicked), "event_time": event_time, "fields": dict(fields)}
    return send([{**event, "prediction": prediction} if prediction else event], run=run)


# ── runs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
def runs() -> Call[list[dict[str, Any]]]:
    """The runs that the API knows, up to a hundred."""
    return Call((Request("GET", "/v1/runs"),), _items)


def status(*, run: str = "") -> Call[dict[str, Any]]:
    """A run with its newest status."""
    return _read(f"/v1/runs/{RUN}", run)


def steps(*, points: int = 500, run: str = "") -> Call[list[dict[str, Any]]]:
    """The steps of a run so far, oldest first, in about as many points: samples, loss, seconds, moved bytes, alpha."""
    if not 1 <= points <= MOST_POINTS:
        raise InvalidInput(f"{points} points of a run's steps are asked for; expected 1 to {MOST_POINTS}")
    request = Request("GET", f"/v1/runs/{RUN}/steps", run=run, query=(("points", str(points)),))
    return Call((request,), _items)


def quality(*, run: str = "") -> Call[dict[str, Any]]:
    """AUC, logloss and calibration of the predictions before learning: in windows, by slice, and as a curve."""
    return _read(f"/v1/runs/{RUN}/quality", run)


def alpha(*, run: str = "") -> Call[dict[str, Any]]:
    """The share of exact assignment, and who chose it."""
    return _read(f"/v1/runs/{RUN}/alpha", run)


def set_alpha(value: float | str, *, reason: str = "", run: str = "") -> Call[dict[str, Any]]:
    """Sets alpha to a number from 0 to 1, or returns it to the dispatcher with ``"auto"``."""
    return _change("PUT", f"/v1/runs/{RUN}/alpha", run, {"value": value, "reason": reason})


def workers(*, run: str = "") -> Call[list[dict[str, Any]]]:
    """The workers of a run."""
    return Call((Request("GET", f"/v1/runs/{RUN}/workers", run=run),), _items)


def add_worker(
    link_gbit: float | None = None, uplink_gbit: float | None = None, *, reason: str = "", run: str = ""
) -> Call[dict[str, Any]]:
    """Starts a further worker on the machine of the run."""
    links = {"link_gbit": link_gbit, "uplink_gbit": uplink_gbit}
    given = {name: gbit for name, gbit in links.items() if gbit is not None}
    return _change("POST", f"/v1/runs/{RUN}/workers", run, {**given, "reason": reason})


def drain_worker(name: str, *, reason: str = "", run: str = "") -> Call[dict[str, Any]]:
    """Lets a worker leave after a checkpoint."""
    return _change("POST", f"/v1/runs/{RUN}/workers/{quote(name, safe='')}/drain", run, {"reason": reason})


def checkpoint(*, reason: str = "", run: str = "") -> Call[dict[str, Any]]:
    """Takes a checkpoint soon."""
    return _change("POST", f"/v1/runs/{RUN}/commands", run, {"verb": "checkpoint", "reason": reason})


def pause(*, reason: str = "", run: str = "") -> Call[dict[str, Any]]:
    """Pauses training."""
    return _change("POST", f"/v1/runs/{RUN}/pause", run, {"reason": reason})


def resume(*, reason: str = "", run: str = "") -> Call[dict[str, Any]]:
    """Resumes a paused run."""
    return _change("POST", f"/v1/runs/{RUN}/resume", run, {"reason": reason})


def stop(*, reason: str = "", run: str = "") -> Call[dict[str, Any]]:
    """Stops a run in order; it can be resumed."""
    return _change("POST", f"/v1/runs/{RUN}/stop", run, {"reason": reason})


# ── snapshots ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def snapshots(*, run: str = "") -> Call[list[dict[str, Any]]]:
    """The snapshots of a run, with any reasons against serving each."""
    return Call((Request("GET", f"{SERVED}/snapshots", run=run),), _items)


def current_snapshot(*, run: str = "") -> Call[dict[str, Any]]:
    """The snapshot that is served."""
    return _read(f"{SERVED}/snapshots/current", run)


def pin_snapshot(checkpoint: int, *, reason: str = "", run: str = "") -> Call[dict[str, Any]]:
    """Serves this snapshot until it is unpinned."""
    return _change("PUT", f"{SERVED}/snapshots/pin", run, {"checkpoint": checkpoint, "reason": reason})


def unpin_snapshot(*, run: str = "") -> Call[dict[str, Any]]:
    """Serves the newest good snapshot again."""
    return _change("DELETE", f"{SERVED}/snapshots/pin", run, None)


def rollback_snapshot(*, reason: str = "", run: str = "") -> Call[dict[str, Any]]:
    """Pins the newest snapshot that may be served and is older than the current one."""
    return _change("POST", f"{SERVED}/snapshots/rollback", run, {"reason": reason})


def _read(path: str, run: str) -> Call[dict[str, Any]]:
    return Call((Request("GET", path, run=run),), _only)


def _change(method: str, path: str, run: str, body: Mapping[str, Any] | None) -> Call[dict[str, Any]]:
    text = None if body is None else json.dumps({name: value for name, value in body.items() if value != ""}).encode()
    return Call((Request(method, path, text, key=uuid.uuid4().hex, run=run),), _only)


def _only(answers: list[Any]) -> dict[str, Any]:
    (answer,) = answers
    found: dict[str, Any] = answer
    return found


def _items(answers: list[Any]) -> list[dict[str, Any]]:
    (answer,) = answers
    found: list[dict[str, Any]] = answer["items"] if isinstance(answer, dict) else answer
    return found

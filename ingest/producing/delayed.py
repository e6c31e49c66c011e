"""Events whose label comes later, for trying delayed labels on a data set.

Each event is first sent to whoever predicts, without its label, under an id of its own; so many seconds later it goes
into the stream, with label and id. Events that still wait when the producer is stopped never go: their labels are
missing, as some are in real life.
"""

import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ingest.codec.nesting import is_too_deep
from ingest.convert import Event
from ingest.errors import InputError
from ingest.producing.producer import TURN_EVENTS, TURNS_PER_SECOND, Unit, take_turn

Ask = Callable[[Sequence[Mapping[str, Any]]], None]
"""sends samples, as JSON has them, to be predicted"""
Pause = Callable[[float], object]
"""waits so many seconds"""
LABEL, ID = "label", "prediction"
REQUEST_EVENTS = 256
"""asked for at once"""


def delay_labels(
    units: Iterable[Unit], ask: Ask, seconds: float, pause: Pause, rate: float | None = None
) -> Iterator[Unit]:
    """The events with their ids, each so long after it was asked for; rate: events a second that are asked for."""
    stream, more = iter(units), True
    waiting: deque[tuple[float, bytes]] = deque()
    started, asked = time.monotonic(), 0
    most = min(REQUEST_EVENTS, TURN_EVENTS)
    while more or waiting:
        due = most if rate is None else min(most, int((time.monotonic() - started) * rate) + 1 - asked)
        if more and due > 0:
            turn, more = take_turn(stream, due)
            asked += len(turn)
            waiting.extend(_ask(turn, ask, seconds))
        while waiting and waiting[0][0] <= time.monotonic():
            yield waiting.popleft()[1]
        yield None  # what was given is written, and a stop is seen
        pause(_wait_seconds(waiting, more, None if rate is None else started + asked / rate))


def _ask(turn: Sequence[Event | bytes], ask: Ask, seconds: float) -> list[tuple[float, bytes]]:
    """Asks for predictions of events; (when each is due, its JSON with the id)."""
    events = [{**_fields_of(event), ID: uuid.uuid4().hex} for event in turn]
    if events:
        ask([{name: value for name, value in event.items() if name != LABEL} for event in events])
    due = time.monotonic() + seconds
    return [(due, msgspec.json.encode(event)) for event in events]


def _wait_seconds(waiting: Sequence[tuple[float, bytes]], more: bool, next_ask: float | None) -> float:
    """Until an event is due or one more may be asked for."""
    now, moments = time.monotonic(), [waiting[0][0]] if waiting else []
    if more:
        moments.append(now if next_ask is None else next_ask)
    return max(0.0, min(1 / TURNS_PER_SECOND, min(moments, default=now) - now))


def _fields_of(event: Event | bytes) -> dict[str, Any]:
    if isinstance(event, Event):
        return dict(msgspec.to_builtins(event))
    try:
        if is_too_deep(event):
            raise ValueError("it is nested too deeply")
        return msgspec.json.decode(event, type=dict[str, Any])
    except (msgspec.DecodeError, ValueError) as error:
        raise InputError(
            f"cannot ask for a prediction of {event[:80]!r}: {error}; expected an event; correct or remove the line"
        ) from error

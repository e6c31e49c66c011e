"""Events whose label comes later, for trying delayed labels on a data set.

Each event is first sent to the prediction server, without its label, under a new id; some seconds later it is written
into the stream, with label and id. Events that still wait when the producer is stopped are never written: their labels
are missing, as some are in real life.

A new run has no snapshot that could predict before some events are trained. Until there is one, events are written at
once, with their label and without an id. So are events that cannot be predicted because they do not fit the schema:
readers of the stream turn them into dead letters, with the reason.
"""

import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ingest.codec.nesting import is_too_deep
from ingest.convert import Event
from ingest.errors import NothingPredicts
from ingest.producing.producer import TURN_EVENTS, TURNS_PER_SECOND, Unit, take_turn

Ask = Callable[[Sequence[Mapping[str, Any]]], Mapping[int, str]]
"""Sends samples in JSON form to be predicted. If some do not fit the schema, none is predicted, and it returns their
reasons by index; raises NothingPredicts while no snapshot is served.
"""
Tell = Callable[[str], None]
"""Shows a line to the user."""
Due = tuple[float, bytes]
"""When an event is to be written, and its JSON."""
Pause = Callable[[float], object]
"""Waits that many seconds."""
LABEL = "label"
ID = "prediction"
REQUEST_EVENTS = 256
"""Events per request."""


def delay_labels(
    units: Iterable[Unit],
    ask: Ask,
    seconds: float,
    pause: Pause,
    rate: float | None = None,
    tell: Tell = lambda line: None,
) -> Iterator[Unit]:
    """The events with their ids, each delayed by that long; rate: events per second for which predictions are
    requested.
    """
    stream = iter(units)
    more = True
    predictor = Predictor(ask, seconds, tell)
    waiting: deque[Due] = deque()
    started = time.monotonic()
    asked = 0
    most = min(REQUEST_EVENTS, TURN_EVENTS)
    while more or waiting:
        due = most if rate is None else min(most, int((time.monotonic() - started) * rate) + 1 - asked)
        if more and due > 0:
            turn, more = take_turn(stream, due)
            asked += len(turn)
            predicted, others = predictor.predict(turn)
            waiting.extend(predicted)
            yield from others
        while waiting and waiting[0][0] <= time.monotonic():
            yield waiting.popleft()[1]
        yield None  # so that earlier events are written, and a stop is noticed
        pause(_wait_seconds(waiting, more, None if rate is None else started + asked / rate))


class Predictor:
    """Requests predictions, and counts the events without one."""

    def __init__(self, ask: Ask, seconds: float, tell: Tell) -> None:
        """seconds: how much later the labels come."""
        self._ask = ask
        self._seconds = seconds
        self._tell = tell
        self._unserved = 0
        """Events that were not predicted since a snapshot was last served."""

    def predict(self, turn: Sequence[Event | bytes]) -> tuple[list[Due], list[bytes]]:
        """What is written later, with the id of its prediction; and what is written now, since nobody predicts it."""
        lines = [event if isinstance(event, bytes) else msgspec.json.encode(event) for event in turn]
        samples = [_sample_of(line) for line in lines]
        try:
            self._drop_unfit(samples)
        except NothingPredicts as nothing:
            self._count_unserved(len(lines), str(nothing))
            return [], lines
        self._count_served()
        due = time.monotonic() + self._seconds
        later = [(due, msgspec.json.encode(sample)) for sample in samples if sample is not None]
        return later, [line for line, sample in zip(lines, samples, strict=True) if sample is None]

    def _drop_unfit(self, samples: list[dict[str, Any] | None]) -> None:
        """Sends requests until all samples are predicted; those that do not fit the schema become None."""
        while asked := [(place, sample) for place, sample in enumerate(samples) if sample is not None]:
            unlabelled = [{name: value for name, value in sample.items() if name != LABEL} for _, sample in asked]
            if not (reasons := self._ask(unlabelled)):
                return
            for at in reasons:
                samples[asked[at][0]] = None

    def _count_unserved(self, events: int, reason: str) -> None:
        if not self._unserved:
            self._tell(f"waiting for the first snapshot, events are written without predictions meanwhile: {reason}")
        self._unserved += events

    def _count_served(self) -> None:
        if self._unserved:
            self._tell(f"a snapshot is served; {self._unserved:,} events were written without predictions before")
        self._unserved = 0


def _wait_seconds(waiting: Sequence[Due], more: bool, next_ask: float | None) -> float:
    """Time until an event is due or another prediction may be requested."""
    now = time.monotonic()
    moments = [waiting[0][0]] if waiting else []
    if more:
        moments.append(now if next_ask is None else next_ask)
    return max(0.0, min(1 / TURNS_PER_SECOND, min(moments, default=now) - now))


def _sample_of(line: bytes) -> dict[str, Any] | None:
    """An event with a new id; None for a line that is not a JSON object."""
    try:
        return None if is_too_deep(line) else msgspec.json.decode(line, type=dict[str, Any]) | {ID: uuid.uuid4().hex}
    except (msgspec.DecodeError, ValueError):
        return None

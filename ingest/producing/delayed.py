"""Events whose label comes later, for trying delayed labels on a data set.

Each event is first sent to whoever predicts, without its label, under an id of its own; so many seconds later it goes
into the stream, with label and id. Events that still wait when the producer is stopped never go: their labels are
missing, as some are in real life.

A new run has no version that could predict before some events are trained. Until there is one, events go into the
stream at once, with their label and without an id. So do events that cannot be predicted because they do not fit the
schema: whoever reads the stream makes dead letters of them, with the reason.
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
"""sends samples, as JSON has them, to be predicted; if some do not fit the schema, none is, and it returns the reasons
of those by their place; raises NothingPredicts while no version is served"""
Tell = Callable[[str], None]
"""shows a line to whoever watches"""
Due = tuple[float, bytes]
"""when an event is to be written, and its JSON"""
Pause = Callable[[float], object]
"""waits so many seconds"""
LABEL = "label"
ID = "prediction"
REQUEST_EVENTS = 256
"""asked for at once"""


def delay_labels(
    units: Iterable[Unit],
    ask: Ask,
    seconds: float,
    pause: Pause,
    rate: float | None = None,
    tell: Tell = lambda line: None,
) -> Iterator[Unit]:
    """The events with their ids, each so long after it was asked for; rate: events a second that are asked for."""
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
        yield None  # what was given is written, and a stop is seen
        pause(_wait_seconds(waiting, more, None if rate is None else started + asked / rate))


class Predictor:
    """Asks for predictions, and keeps count of what went without one."""

    def __init__(self, ask: Ask, seconds: float, tell: Tell) -> None:
        """seconds: how much later the labels come."""
        self._ask = ask
        self._seconds = seconds
        self._tell = tell
        self._unserved = 0
        """events that were not predicted since a version was last served"""

    def predict(self, turn: Sequence[Event | bytes]) -> tuple[list[Due], list[bytes]]:
        """(what is written later, with the id of its prediction; what is written now, since nobody predicts it)."""
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
        """Asks until all of them are predicted; those that do not fit the schema become None."""
        while asked := [(place, sample) for place, sample in enumerate(samples) if sample is not None]:
            unlabelled = [{name: value for name, value in sample.items() if name != LABEL} for _, sample in asked]
            if not (reasons := self._ask(unlabelled)):
                return
            for at in reasons:
                samples[asked[at][0]] = None

    def _count_unserved(self, events: int, reason: str) -> None:
        if not self._unserved:
            self._tell(f"waiting for the first version, events are written without predictions meanwhile: {reason}")
        self._unserved += events

    def _count_served(self) -> None:
        if self._unserved:
            self._tell(f"a version is served; {self._unserved:,} events were written without predictions before")
        self._unserved = 0


def _wait_seconds(waiting: Sequence[Due], more: bool, next_ask: float | None) -> float:
    """Until an event is due or one more may be asked for."""
    now = time.monotonic()
    moments = [waiting[0][0]] if waiting else []
    if more:
        moments.append(now if next_ask is None else next_ask)
    return max(0.0, min(1 / TURNS_PER_SECOND, min(moments, default=now) - now))


def _sample_of(line: bytes) -> dict[str, Any] | None:
    """An event with an id of its own; None for a line that is no JSON object."""
    try:
        return None if is_too_deep(line) else msgspec.json.decode(line, type=dict[str, Any]) | {ID: uuid.uuid4().hex}
    except (msgspec.DecodeError, ValueError):
        return None

"""Writes events to a sink, the embedded log or Kafka, evenly paced; everything that it counts is durable.

An event may be given as the bytes of its JSON; it is then written unchanged, whatever it contains.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from infra.base.process import Stop
from ingest.convert import Event
from ingest.producing.encoder import Encoder
from ingest.streams.sink import Sink

TURN_EVENTS = 2048
"""Most events between two appends."""
TURNS_PER_SECOND = 10
"""Appends per second of a paced stream."""

SO_FAR = "so far"

Unit = Event | bytes | None
"""An item of a stream: an event, the JSON of one, or None if there is nothing more yet."""


@dataclass(frozen=True)
class Produced:
    """What one producer wrote."""

    events: int
    """Good and bad events."""
    poisoned: int
    """Bad ones among them that this producer made bad."""
    records: int
    seconds: float
    reason: str
    """Why it ended: count, duration, end of events, or the reason of the stop; so far: it has not ended."""
    read_to: int | None = None
    """Byte of a followed file up to which its lines are written."""
    is_waiting: bool = False
    """Whether a followed file held no further line."""


def produce(
    events: Iterable[Unit],
    sink: Sink,
    encoder: Encoder,
    stop: Stop,
    rate: float | None = None,
    limit: int | None = None,
    duration_seconds: float | None = None,
    show: Callable[[Produced], None] = lambda so_far: None,
) -> Produced:
    """Writes events until they end, limit good ones are written, the time is over, or a stop is requested.

    rate: in events per second. show is called with the totals after every turn.
    """
    started = time.monotonic()
    ends = math.inf if duration_seconds is None else started + duration_seconds
    stream = iter(events)
    turn_events = TURN_EVENTS if rate is None else max(1, min(TURN_EVENTS, round(rate / TURNS_PER_SECOND)))
    total = records = 0
    more = True
    while more and not stop.requested and time.monotonic() < ends:
        left = turn_events if limit is None else min(turn_events, limit - encoder.good)
        turn, more = take_turn(stream, left)
        entries = encoder.encode(turn)
        sink.write(entries)
        records += sum(map(len, entries.values()))
        total = encoder.good + encoder.poisoned
        show(Produced(total, encoder.poisoned, records, time.monotonic() - started, SO_FAR))
        if rate is not None:
            stop.wait(max(0.0, min(started + total / rate, ends) - time.monotonic()))
    reason = _reason(stop, limit == encoder.good, more)
    return Produced(total, encoder.poisoned, records, time.monotonic() - started, reason)


def _reason(stop: Stop, is_complete: bool, more: bool) -> str:
    if stop.requested:
        return stop.reason
    if is_complete:
        return "count"
    return "duration" if more else "end of events"


def take_turn(stream: Iterator[Unit], most: int) -> tuple[list[Event | bytes], bool]:
    """The next events, at most that many, and whether there may be more; fewer if the stream pauses or ends."""
    turn: list[Event | bytes] = []
    while len(turn) < most:
        try:
            event = next(stream)
        except StopIteration:
            return turn, False
        if event is None:
            return turn, True
        turn.append(event)
    return turn, most > 0

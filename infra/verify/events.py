"""Checks of the stream: every event was trained, is a dead letter, was skipped, or is still to come; none is two."""

from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dispatch.journal.history import History
from infra.run.settings import Settings, read_stored
from infra.verify.finding import NotChecked, Violated, check
from infra.verify.journal import read_run, since, trained
from ingest.codec.packed import PackedCodec, is_packed
from ingest.errors import BrokerError, SourceError
from ingest.opening import open_source, read_letters
from ingest.streams.position import Position, Range
from ingest.streams.source import Source

READ_BYTES = 4 << 20


@dataclass(frozen=True)
class CountedEvents:
    """How many events the records of a partition hold, from an offset on. Legend: R records."""

    offsets_R: NDArray[np.int64]
    before_R: NDArray[np.int64]
    """Events before each record."""
    total: int

    def before(self, at: Position) -> int:
        """Events before a position."""
        place = int(np.searchsorted(self.offsets_R, at.offset))
        return (int(self.before_R[place]) if place < len(self.before_R) else self.total) + at.index


@check("events add up")
def check_events(folder: Path) -> str:
    """Produced = trained + dead + skipped + left + omitted negatives, counted in the log itself."""
    history = read_run(folder)
    settings = read_stored(folder)
    produced = left = skipped = 0
    try:
        with closing(open_source(settings.stream, settings.kafka)) as source:
            for partition in source.partitions():
                start = begin_of(history, partition)
                end = history.positions.get(partition, Position(0))
                counted = count_events(source, settings, partition, start.offset)
                produced += counted.total - counted.before(start)
                skipped += sum(
                    counted.before(gap.end) - counted.before(gap.start) for gap in gaps_in(history, partition)
                )
                left += counted.total - counted.before(end)
    except (SourceError, BrokerError) as error:
        raise NotChecked(f"the stream cannot be read: {error}") from error
    rejected = sum(step.manifest.rejected for step in history.steps)
    omitted = sum(step.manifest.omitted for step in history.steps)
    parts = f"{trained(history):,} trained + {rejected:,} dead + {skipped:,} skipped + {left:,} left"
    parts += f" + {omitted:,} omitted" if omitted else ""
    if produced != trained(history) + rejected + skipped + left + omitted:
        raise Violated(f"{produced:,} events were produced {since(history)}; expected {parts}")
    return f"{produced:,} produced {since(history)} = {parts}"


def begin_of(history: History, partition: int) -> Position:
    """Where the journal's steps begin in a partition."""
    return history.base.positions.get(partition, Position(0))


def gaps_in(history: History, partition: int) -> list[Range]:
    """Ranges of a partition that were skipped."""
    return [gap for step in history.steps for gap in step.manifest.skipped if gap.partition == partition]


def count_events(source: Source, settings: Settings, partition: int, start: int) -> CountedEvents:
    """Events of every record from an offset on; raises NotChecked if retention has removed some."""
    codec = PackedCodec(settings.event_schema)
    first, _ = source.span(partition)
    if first > start:
        raise NotChecked(f"retention has removed events of partition {partition} up to record {first}")
    offsets = list[int]()
    counts = list[int]()
    at = start
    while records := source.read(partition, at, READ_BYTES):
        offsets += [record.offset for record in records]
        counts += [events_in(codec, record.payload) for record in records]
        at = records[-1].offset + 1
    ends_R = np.cumsum(counts, dtype=np.int64)
    before_R = ends_R - np.array(counts, np.int64)
    return CountedEvents(np.array(offsets, np.int64), before_R, int(ends_R[-1]) if counts else 0)


def events_in(codec: PackedCodec, payload: bytes) -> int:
    """A JSON record is one event, and so is a packed one whose header cannot be used."""
    count = codec.count(payload) if is_packed(payload) else 1
    return count if isinstance(count, int) else 1


@check("letters unique")
def check_letters(folder: Path) -> str:
    """Every rejected event is one dead letter; those of a step that was not ordered may be missing."""
    history = read_run(folder)
    settings = read_stored(folder)
    origin = f"{settings.run}/{settings.stream.topic}"
    try:
        letters = [letter for letter in read_letters(settings.stream, settings.kafka) if letter.origin == origin]
    except (SourceError, BrokerError) as error:
        raise NotChecked(f"the dead letters cannot be read: {error}") from error
    places = Counter((letter.partition, letter.offset, letter.index) for letter in letters)
    if twice := sorted(place for place, times in places.items() if times > 1)[:3]:
        raise Violated(f"dead letters of (partition, offset, index) {twice} are there more than once")
    reached = ends_of(history)
    if strays := sorted(p for p in places if Position(p[1], p[2]) >= reached.get(p[0], Position(0))):
        raise Violated(f"dead letters of (partition, offset, index) {strays[:3]} are of events that no step took")
    rejected = sum(step.manifest.rejected for step in history.steps)
    last = sum(step.manifest.rejected for step in history.steps[-1:] if history.ended is None)
    void = sum(manifest.rejected for manifest in history.to_redecide)
    recent = sum(Position(p[1], p[2]) >= begin_of(history, p[0]) for p in places)
    if not rejected - last <= recent <= rejected + void:
        raise Violated(f"{recent:,} dead letters are kept; expected {rejected:,}, as many as events were rejected")
    return f"{recent:,} letters of {rejected:,} rejected events {since(history)}"


def ends_of(history: History) -> dict[int, Position]:
    """How far each partition was read, also by steps that are to be decided again."""
    taken = [r for manifest in history.to_redecide for r in (*manifest.skipped, *manifest.ranges)]
    return {**history.positions, **{r.partition: r.end for r in taken}}

"""Rejected events, kept once each with where they came from and why; here in a topic of the embedded log.

On Kafka they are kept by ``ingest.kafka.letter_topic``.

Dead letters come in the order of their positions within a partition, and a restart brings some of them again; the log
remembers, for each origin (run and topic), the last position of each partition and leaves out what it already has.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from ingest.log.embedded import LogReader, LogWriter
from ingest.streams.position import Position
from ingest.streams.sink import Entry


class DeadLetter(msgspec.Struct, frozen=True):
    """One event that was not trained on."""

    partition: int
    offset: int
    index: int
    reason: str
    payload: bytes
    origin: str = ""
    """RUN/TOPIC it was read in"""
    size: int | None = None
    """bytes of the event where the payload is not all of it"""
    time_ms: int = 0
    """unix milliseconds at which it was written; 0: it has not been"""


class DeadLetters(Protocol):
    """Keeps letters, each once for its (origin, partition, offset, index)."""

    def append(self, letters: Sequence[DeadLetter]) -> int:
        """Writes those that are not there yet, durably, and returns how many that were.

        Raises SinkUnavailable where that is not possible now: the same letters are then to be given again.
        """

    def close(self) -> None: ...


def unseen(letters: Sequence[DeadLetter], last: Mapping[int, Position]) -> list[DeadLetter]:
    """Those behind the last one written of their partition, each once; they come in the order of their positions."""
    reached, new = dict(last), []
    for letter in letters:
        position = Position(letter.offset, letter.index)
        if position > reached.get(letter.partition, Position(-1)):
            new.append(letter)
            reached[letter.partition] = position
    return new


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(DeadLetter)


class DeadLetterLog:
    """The dead-letter topic; one writer. A DeadLetters."""

    def __init__(
        self, folder: Path, topic: str = "dead-letters", origin: str = "", retention_bytes: int | None = None
    ) -> None:
        self._writer = LogWriter(folder, topic, 1, retention_bytes=retention_bytes)
        self._origin = origin
        self._last: dict[int, Position] = {}
        for letter in read_dead_letters(folder, topic):
            if letter.origin == origin:
                self._last[letter.partition] = Position(letter.offset, letter.index)

    def append(self, letters: Sequence[DeadLetter]) -> int:
        """Writes those that are not there yet, durably, and returns how many that were."""
        new = unseen(letters, self._last)
        self._writer.append(0, [self._entry(letter) for letter in new])
        self._last |= {letter.partition: Position(letter.offset, letter.index) for letter in new}
        return len(new)

    def close(self) -> None:
        self._writer.close()

    def _entry(self, letter: DeadLetter) -> Entry:
        filed = msgspec.structs.replace(letter, origin=self._origin)
        return f"{letter.partition}:{letter.offset}:{letter.index}".encode(), _encoder.encode(filed)


def read_dead_letters(folder: Path, topic: str = "dead-letters") -> Iterator[DeadLetter]:
    """Every dead letter that is kept, oldest first."""
    reader = LogReader(folder, topic)
    try:
        for partition in reader.partitions():
            offset, end = reader.span(partition)
            while offset < end:
                records = reader.read(partition, offset)
                offset += len(records)
                for record in records:
                    yield msgspec.structs.replace(_decoder.decode(record.payload), time_ms=record.time_ms)
    finally:
        reader.close()

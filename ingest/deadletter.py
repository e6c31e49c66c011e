"""Rejected events, kept once each in a topic of the embedded log, with where they came from and why.

Dead letters come in the order of their positions within a partition, and a restart brings some of them again; the log
remembers, for each origin (run and topic), the last position of each partition and leaves out what it already has.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from ingest.log import LogReader, LogWriter
from ingest.manifest import Position


class DeadLetter(msgspec.Struct, frozen=True):
    """One event that was not trained on."""

    partition: int
    offset: int
    index: int
    reason: str
    payload: bytes
    origin: str = ""
    """RUN/TOPIC it was read in"""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(DeadLetter)


class DeadLetterLog:
    """The dead-letter topic; one writer."""

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
        last, new = dict(self._last), []
        for letter in letters:
            position = Position(letter.offset, letter.index)
            if position > last.get(letter.partition, Position(-1)):
                filed = msgspec.structs.replace(letter, origin=self._origin)
                new.append((f"{letter.partition}:{letter.offset}:{letter.index}".encode(), _encoder.encode(filed)))
                last[letter.partition] = position
        self._writer.append(0, new)
        self._last = last
        return len(new)

    def close(self) -> None:
        self._writer.close()


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
                    yield _decoder.decode(record.payload)
    finally:
        reader.close()

"""Dead letters in a topic of the embedded log."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from ingest.errors import LogError
from ingest.letters.letter import DeadLetter, unseen
from ingest.log.embedded import LogReader, LogWriter
from ingest.streams.position import Position
from ingest.streams.sink import Entry
from ingest.streams.source import Record

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(DeadLetter)


class DeadLetterLog:
    """The dead-letter topic; one writer. Implements DeadLetters."""

    def __init__(
        self, folder: Path, topic: str = "dead-letters", origin: str = "", retention_bytes: int | None = None
    ) -> None:
        self._origin = origin
        self._last: dict[int, Position] = {}
        with ExitStack() as undo:
            self._writer = LogWriter(folder, topic, 1, retention_bytes=retention_bytes)
            undo.callback(self._writer.close)
            for letter in read_dead_letters(folder, topic):
                if letter.origin == origin:
                    self._last[letter.partition] = Position(letter.offset, letter.index)
            undo.pop_all()

    def append(self, letters: Sequence[DeadLetter]) -> int:
        """Writes the letters that are not stored yet, durably, and returns their number."""
        new = unseen(letters, self._last)
        self._writer.append(0, [self._entry(letter) for letter in new])
        self._last |= {letter.partition: Position(letter.offset, letter.index) for letter in new}
        return len(new)

    def close(self) -> None:
        self._writer.close()

    def _entry(self, letter: DeadLetter) -> Entry:
        with_origin = msgspec.structs.replace(letter, origin=self._origin)
        return f"{letter.partition}:{letter.offset}:{letter.index}".encode(), _encoder.encode(with_origin)


def read_dead_letters(folder: Path, topic: str = "dead-letters") -> Iterator[DeadLetter]:
    """All dead letters, oldest first."""
    reader = LogReader(folder, topic)
    try:
        for partition in reader.partitions():
            offset, end = reader.span(partition)
            while offset < end:
                records = reader.read(partition, offset)
                offset += len(records)
                for record in records:
                    yield _decode(record, folder / topic)
    finally:
        reader.close()


def newest_dead_letters(folder: Path, topic: str, origin: str, most: int) -> list[DeadLetter]:
    """The dead letters of one origin among the newest of a topic, newest first; none if the topic has not begun."""
    reader = LogReader(folder, topic)
    found: list[DeadLetter] = []
    try:
        for partition in reader.partitions():
            first, end = reader.span(partition)
            offset = max(first, end - most)
            while offset < end:
                records = reader.read(partition, offset)
                offset += len(records)
                found += [_decode(record, folder / topic) for record in records]
    finally:
        reader.close()
    return [letter for letter in reversed(found) if letter.origin == origin]


def _decode(record: Record, folder: Path) -> DeadLetter:
    try:
        return msgspec.structs.replace(_decoder.decode(record.payload), time_ms=record.time_ms)
    except msgspec.DecodeError as error:
        raise LogError(
            f"record {record.offset} in {folder} is no dead letter: {error}; expected a topic of dead letters; name "
            "the right one in stream.dead_letter_topic"
        ) from error

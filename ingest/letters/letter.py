"""Dead letters: rejected events, each kept once with its origin and reason.

They come in the order of their positions within a partition, and a restart brings some of them again. The two stores
(``ingest.letters.embedded``, ``ingest.kafka.letter_topic``) know, for each origin (run and topic), the last position of
each partition, and omit letters that are already stored.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from ingest.streams.position import Position


class DeadLetter(msgspec.Struct, frozen=True):
    """One rejected event."""

    partition: int
    offset: int
    index: int
    reason: str
    payload: bytes
    origin: str = ""
    """RUN/TOPIC in which it was read."""
    size: int | None = None
    """Bytes of the event if the payload is not all of it."""
    time_ms: int = 0
    """Unix milliseconds at which it was written; 0: not yet."""


class DeadLetters(Protocol):
    """A store of letters, each once for its (origin, partition, offset, index)."""

    def append(self, letters: Sequence[DeadLetter]) -> int:
        """Writes the letters that are not stored yet, durably, and returns their number.

        Raises SinkUnavailable if that is not possible now; the caller then tries the same letters again.
        """

    def close(self) -> None: ...


class NoLetters:
    """Stores nothing: the letters of a replay are stored already. Implements DeadLetters."""

    def append(self, letters: Sequence[DeadLetter]) -> int:
        return 0

    def close(self) -> None: ...


def unseen(letters: Sequence[DeadLetter], last: Mapping[int, Position]) -> list[DeadLetter]:
    """The letters after the last one written of their partition, each once; they come in the order
    of their positions.
    """
    reached = dict(last)
    new = []
    for letter in letters:
        position = Position(letter.offset, letter.index)
        if position > reached.get(letter.partition, Position(-1)):
            new.append(letter)
            reached[letter.partition] = position
    return new

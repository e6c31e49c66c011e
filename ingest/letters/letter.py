"""Dead letters: rejected events, kept once each with where they came from and why.

They come in the order of their positions within a partition, and a restart brings some of them again. Whoever keeps
them (``ingest.letters.embedded``, ``ingest.kafka.letter_topic``) knows, for each origin (run and topic), the last
position of each partition, and leaves out what is already there.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from ingest.streams.position import Position


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
    """unix milliseconds at which it was written; 0: not yet"""


class DeadLetters(Protocol):
    """Keeps letters, each once for its (origin, partition, offset, index)."""

    def append(self, letters: Sequence[DeadLetter]) -> int:
        """Writes those that are not kept yet, durably, and returns how many they were.

        Raises SinkUnavailable if that is not possible now: the caller then gives the same letters again.
        """

    def close(self) -> None: ...


class NoLetters:
    """Keeps none: those of a replay are kept already. Implements DeadLetters."""

    def append(self, letters: Sequence[DeadLetter]) -> int:
        return 0

    def close(self) -> None: ...


def unseen(letters: Sequence[DeadLetter], last: Mapping[int, Position]) -> list[DeadLetter]:
    """Those after the last one written of their partition, each once; they come in the order of their positions."""
    reached = dict(last)
    new = []
    for letter in letters:
        position = Position(letter.offset, letter.index)
        if position > reached.get(letter.partition, Position(-1)):
            new.append(letter)
            reached[letter.partition] = position
    return new

"""How far training is behind the stream.

Two threads write here, each its own attributes, and each replaces whole values, so either may read at any moment.
"""

from collections.abc import Sequence

from ingest.streams.position import Range


class Lag:
    """Counts events that are known, formed into batches, and handed out."""

    def __init__(self) -> None:
        # written by the loader's thread that reads
        self.waiting = 0
        """Events, in the source or decoded, that are in no batch yet."""
        self.formed = 0
        """Events in all batches formed."""
        self.known = 0
        """Events waiting or formed."""
        # written by the thread that takes batches
        self.handed_at: dict[int, int] = {}
        """The record up to which batches were handed out, per partition."""
        self._handed = 0

    @property
    def events(self) -> int:
        """Events not yet handed out; unread packed records count with the mean size of those read."""
        return self.known - self._handed

    def add_formed(self, events: int) -> None:
        self.formed += events

    def set_waiting(self, events: int) -> None:
        self.waiting = events
        self.known = events + self.formed

    def add_handed(self, ranges: Sequence[Range], events: int) -> None:
        self._handed += events
        self.handed_at = {**self.handed_at, **{each.partition: each.end.offset for each in ranges}}

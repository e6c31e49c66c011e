"""The destination of records: the embedded log or a Kafka topic, behind one protocol."""

from collections.abc import Mapping, Sequence
from typing import Protocol

Entry = tuple[bytes | None, bytes]
"""Key and payload of a record to write."""


class Sink(Protocol):
    """Partitions that records are appended to, each in the given order."""

    @property
    def partitions(self) -> list[int]:
        """Partitions that existed at the opening."""

    def write(self, entries: Mapping[int, Sequence[Entry]]) -> None:
        """Appends records, by partition; returns once every one of them is durable."""

    def ends(self) -> dict[int, int]:
        """The offset that the next record of each partition will have."""

    def close(self) -> None: ...

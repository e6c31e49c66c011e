"""The origin of records: the embedded log or a Kafka topic, behind one protocol."""

from collections.abc import Mapping
from typing import Protocol

import msgspec


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record of a partition. A JSON record is one event, a packed record many."""

    offset: int
    key: bytes | None
    payload: bytes
    time_ms: int
    """Unix milliseconds at which the record was appended."""


class Source(Protocol):
    """Partitions of durable records in the order of their offsets; a broker may leave gaps between them.

    A method raises SourceUnavailable if it cannot answer now; the caller waits a little and tries again.
    """

    @property
    def clock(self) -> str:
        """Whose times the records have: 'append' (the log's), 'CreateTime' (the producer's) or 'LogAppendTime' (the
        broker's); empty: not known yet.
        """

    def partitions(self) -> list[int]:
        """Partitions that exist now; more may be created."""

    def span(self, partition: int) -> tuple[int, int]:
        """(first retained offset, offset after the last durable record)."""

    def read(self, partition: int, offset: int, max_bytes: int) -> list[Record]:
        """Records from offset on, about max_bytes of them, at least one unless there is none; [] at the end.

        Raises OffsetOutOfRange below the first retained record.
        """

    def offset_at(self, partition: int, time_ms: int) -> int:
        """The first offset whose record was appended at that time or later; the end if there is none."""

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Publishes how far a run has read, for display; nothing depends on it."""

    def close(self) -> None: ...

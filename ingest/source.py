"""Where records come from: the embedded log today, a Kafka topic with the same four questions."""

from typing import Protocol

import msgspec


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record of a partition. A JSON record is one event, a packed record many."""

    offset: int
    key: bytes | None
    payload: bytes
    time_ms: int
    """unix milliseconds at which the record was appended"""


class Source(Protocol):
    """Partitions of durable records in the order of their offsets; a broker may leave gaps between them."""

    def partitions(self) -> list[int]:
        """Partitions there are now; more may come."""

    def span(self, partition: int) -> tuple[int, int]:
        """(first retained offset, offset after the last durable record)."""

    def read(self, partition: int, offset: int, max_bytes: int) -> list[Record]:
        """Records from offset on, about max_bytes of them, at least one if there is one; [] at the end.

        Raises OffsetOutOfRange below the first retained record.
        """

    def close(self) -> None: ...

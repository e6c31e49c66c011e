"""Records of one partition that have been fetched and not read yet."""

from dataclasses import dataclass, field

from ingest.kafka.clients.base import Fetched
from ingest.streams.source import Record


@dataclass
class PartitionBuffer:
    """Fetched records from ``start`` on, without gaps except those of the broker."""

    start: int
    """Offset from which on the buffer is complete."""
    position: int
    """Offset after the last one fetched, including records that are not for us."""
    records: list[Record] = field(default_factory=list)
    taken: int = 0
    """How many of the records have been read."""
    size_bytes: int = 0
    """Payload bytes of the records that are not read yet."""
    is_out_of_range: bool = False

    @property
    def is_empty(self) -> bool:
        return self.taken == len(self.records)

    @property
    def has_news(self) -> bool:
        """Whether a reader learns something: records, or that there are none at its offset."""
        return not self.is_empty or self.is_out_of_range

    def add(self, fetched: Fetched) -> None:
        self.is_out_of_range |= fetched.is_out_of_range
        new = fetched.records
        if new:
            self.records = self.records[self.taken :] + new
            self.taken = 0
            self.size_bytes += sum(len(record.payload) for record in new)
            self.position = new[-1].offset + 1
        if fetched.position is not None:
            self.position = max(self.position, fetched.position)

    def take_records(self, max_bytes: int) -> list[Record]:
        """The next records, about max_bytes of them, at least one."""
        end = self.taken
        size = 0
        while end < len(self.records) and size < max_bytes:
            size += len(self.records[end].payload)
            end += 1
        taken = self.records[self.taken : end]
        self.taken = end
        self.start = taken[-1].offset + 1
        self.size_bytes -= size
        return taken

    def drop_before(self, offset: int) -> None:
        while not self.is_empty and self.records[self.taken].offset < offset:
            self.size_bytes -= len(self.records[self.taken].payload)
            self.taken += 1
        self.start = offset

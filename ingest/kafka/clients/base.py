"""What a Kafka client library must do for the source; one subclass a library.

Every foreign error is translated at this edge: SourceUnavailable where asking again may help, SourceError for what a
person must look at. An offset out of range is told by ``poll``, since it concerns one partition.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ingest.errors import SourceError
from ingest.streams.source import Record

FETCH_WAIT_MS = 50
"""how long a broker may hold back an answer while it has nothing; a partition just sought may wait that long"""
LARGEST_BYTES = 100_000_000
"""an answer may be larger than asked for, by one record"""
RECONNECT_MS = 1000
"""longest pause between two attempts to reach a broker"""


@dataclass(frozen=True)
class Topic:
    """A topic as the broker describes it."""

    identity: str
    """changes when a topic is deleted and created again under the same name"""
    partitions: tuple[int, ...]


@dataclass
class Fetched:
    """What one poll brought of one partition."""

    records: list[Record] = field(default_factory=list)
    position: int | None = None
    """the offset after all that was looked at, records that are not for us included; None: not known"""
    is_out_of_range: bool = False


class Consumer(ABC):
    """Reads assigned partitions of one topic; committed records only; one thread at a time."""

    @abstractmethod
    def describe(self, seconds: float) -> Topic | None:
        """The topic now; None if the broker knows no such topic."""

    @abstractmethod
    def spans(self, partitions: Iterable[int], seconds: float) -> dict[int, tuple[int, int]]:
        """(first retained offset, offset after the last committed record) of each partition."""

    @abstractmethod
    def offsets_at(self, partitions: Iterable[int], time_ms: int, seconds: float) -> dict[int, int | None]:
        """The first offset whose record is not older, or None if there is none."""

    @abstractmethod
    def seek(self, partition: int, offset: int) -> None:
        """The next records of this partition come from there on; the first call assigns it."""

    @abstractmethod
    def poll(self, seconds: float) -> dict[int, Fetched]:
        """What has come; waits for something that long, at most."""

    @abstractmethod
    def pause(self, partitions: Iterable[int], paused: bool) -> None:
        """Nothing more is fetched of paused partitions."""

    @abstractmethod
    def commit(self, offsets: Mapping[int, int], seconds: float) -> None:
        """Tells the group where we are; 0 seconds: does not wait. Whatever goes wrong is of no consequence."""

    @abstractmethod
    def close(self) -> None: ...


def refused(what: str, error: object) -> SourceError:
    """The error for what no waiting will change."""
    return SourceError(
        f"cannot {what}: Kafka says {error}; expected a topic this client may read and whole records; check the "
        "broker, its access rules and the security settings under [kafka]"
    )

"""What a Kafka client library must do: a consumer for the source, a producer for the sink; one subclass a library.

The library's errors are translated here: a consumer raises SourceUnavailable where asking again may help, SourceError
for what a person must look at, and returns an offset out of range from ``poll``, since it concerns one partition. A
producer raises SinkError.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ingest.errors import SourceError
from ingest.streams.source import Record

FETCH_WAIT_MS = 50
"""how long a broker may hold back an answer while it has nothing; a partition just sought may wait that long"""
LARGEST_ANSWER_BYTES = 100_000_000
"""an answer may be larger than asked for, by one record"""
LARGEST_RECORD_BYTES = 64 << 20
"""of a record that is offered to the broker; the topic's own limit decides"""
LINGER_MS = 5
"""how long a producer waits for more records to send together"""
RECONNECT_MS = 1000
"""longest pause between two attempts to reach a broker"""


@dataclass(frozen=True)
class TopicSnapshot:
    """A topic as the broker describes it now."""

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


CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"
"""as a topic's message.timestamp.type names them"""


class Consumer(ABC):
    """Reads assigned partitions of one topic; committed records only; one thread at a time."""

    clock = ""
    """whose times the latest records have: CREATE_TIME or LOG_APPEND_TIME; empty: not known yet"""

    @abstractmethod
    def describe(self, seconds: float) -> TopicSnapshot | None:
        """The topic now; None if the broker knows no such topic."""

    @abstractmethod
    def spans(self, partitions: Iterable[int], seconds: float) -> dict[int, tuple[int, int]]:
        """(first retained offset, offset after the last committed record) of each partition."""

    @abstractmethod
    def offsets_at(self, partitions: Iterable[int], time_ms: int, seconds: float) -> dict[int, int | None]:
        """The first offset whose record has that time or a later one; None if there is none."""

    @abstractmethod
    def seek(self, partition: int, offset: int) -> None:
        """Fetches this partition from that offset on; the first call assigns it."""

    @abstractmethod
    def poll(self, seconds: float) -> dict[int, Fetched]:
        """What has arrived, by partition; waits for something that long, at most."""

    @abstractmethod
    def pause(self, partitions: Iterable[int], paused: bool) -> None:
        """Stops fetching partitions, or goes on."""

    @abstractmethod
    def commit(self, offsets: Mapping[int, int], seconds: float) -> None:
        """Commits offsets for the group, for display; 0 seconds: does not wait. A failure is ignored."""

    @abstractmethod
    def close(self) -> None: ...


class Producer(ABC):
    """Writes records to partitions of one topic, each once, acknowledged by all replicas."""

    @abstractmethod
    def send(self, partition: int, key: bytes | None, payload: bytes) -> None:
        """Hands over one record; raises SinkError if that is not possible."""

    @abstractmethod
    def flush(self, seconds: float) -> bool:
        """Whether every record handed over has been acknowledged or refused, after that long at most."""

    @abstractmethod
    def fault(self) -> str | None:
        """Why a record handed over since the last call was refused; None if none was."""

    @abstractmethod
    def close(self) -> None:
        """Gives up what has not been acknowledged."""


def refused(what: str, error: object) -> SourceError:
    """The error for what waiting will not change."""
    return SourceError(
        f"cannot {what}: Kafka says {error}; expected a topic this client may read and whole records; check the "
        "broker, its access rules and the security settings under [kafka]"
    )

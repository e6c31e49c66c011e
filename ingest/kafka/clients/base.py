"""The interface of a Kafka client library: a consumer for the source, a producer for the sink; one subclass per
library.

The library's errors are translated here: a consumer raises SourceUnavailable if a retry may help and SourceError for
what a person must look at; ``poll`` returns an offset out of range, since that concerns one partition. A producer
raises SinkError.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ingest.errors import SourceError
from ingest.streams.source import Record

FETCH_WAIT_MS = 50
"""How long a broker may hold back an answer while it has nothing; a partition after a seek may wait that long."""
LARGEST_ANSWER_BYTES = 100_000_000
"""Limit of an answer, which may be larger than requested by one record."""
LARGEST_RECORD_BYTES = 64 << 20
"""Limit of a record offered to the broker; the topic's own limit decides."""
LINGER_MS = 5
"""How long a producer waits for more records to send together."""
RECONNECT_MS = 1000
"""Longest pause between two attempts to reach a broker."""


@dataclass(frozen=True)
class TopicSnapshot:
    """A topic as the broker describes it now."""

    identity: str
    """Changes when a topic is deleted and created again under the same name."""
    partitions: tuple[int, ...]


@dataclass
class Fetched:
    """What one poll returned for one partition."""

    records: list[Record] = field(default_factory=list)
    position: int | None = None
    """The offset after everything that was read, including records that are not for us; None: not known."""
    is_out_of_range: bool = False


CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"
"""The names of a topic's message.timestamp.type."""


class Consumer(ABC):
    """Reads assigned partitions of one topic, committed records only; one thread at a time."""

    clock = ""
    """Whose times the latest records have: CREATE_TIME or LOG_APPEND_TIME; empty: not known yet."""

    @abstractmethod
    def describe(self, seconds: float) -> TopicSnapshot | None:
        """The topic as it is now; None if the broker does not know it."""

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
        """What has arrived, by partition; waits at most that long for something."""

    @abstractmethod
    def pause(self, partitions: Iterable[int], paused: bool) -> None:
        """Stops fetching partitions, or resumes it."""

    @abstractmethod
    def commit(self, offsets: Mapping[int, int], seconds: float) -> None:
        """Commits offsets for the group, for display; 0 seconds: does not wait. Failures are ignored."""

    @abstractmethod
    def close(self) -> None: ...


class Producer(ABC):
    """Writes records to partitions of one topic, each once, acknowledged by all replicas."""

    @abstractmethod
    def send(self, partition: int, key: bytes | None, payload: bytes) -> None:
        """Sends one record; raises SinkError if that is not possible."""

    @abstractmethod
    def flush(self, seconds: float) -> bool:
        """Waits at most that long; returns whether every record sent has been acknowledged or refused."""

    @abstractmethod
    def fault(self) -> str | None:
        """Why a record sent since the last call was refused; None if none was."""

    @abstractmethod
    def close(self) -> None:
        """Closes the producer; records that are not acknowledged are given up."""


def refused(what: str, error: object) -> SourceError:
    """The error for a problem that waiting will not solve."""
    return SourceError(
        f"cannot {what}: Kafka says {error}; expected a topic this client may read and whole records; check the "
        "broker, its access rules and the security settings under [kafka]"
    )

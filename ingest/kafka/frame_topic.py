"""Numbered frames in a topic of their own on Kafka, written by one owner at a time: a copy of a journal.

A frame is a record: its number and its owner are headers, its content is the value. Each is committed in a transaction
of its own, whose id belongs to the topic, so the broker refuses an owner that another one has replaced. An attempt that
fails, or takes too long, may or may not have been committed: its session is dropped, and the next session settles what
it left. Whoever repeats the attempt may write something else under the same number; the last record of a number counts.

Owners are told apart by their names. Who wrote last is the owner; the first record of an owner has no frame.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog

from ingest.errors import (
    BrokerError,
    OwnerReplaced,
    SinkError,
    SinkUnavailable,
    TransactionFailed,
    TransactionFenced,
    TransactionRefused,
)
from ingest.kafka.access import check_access
from ingest.kafka.clients.admin import Topic, TopicSpec
from ingest.kafka.clients.peek import peek
from ingest.kafka.clients.transactions import SPARE_BYTES, Message, TransactionalProducer
from ingest.kafka.config import KafkaConfig
from ingest.kafka.letter_topic import bounded
from ingest.kafka.topics import connect
from ingest.log.frame_copy import CopiedFrames

ATTEMPT_SECONDS = 5.0
"""How long one attempt to write a frame may take."""
LARGEST_BYTES = 16 << 20
FOREVER = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""Configs without which the broker would remove frames by itself."""
FRAME, OWNER, JOURNAL = "frame", "owner", "journal"
"""Names of headers."""
LOOK_BACK = 16
"""Offsets in which the newest record is looked for first; what transactions leave takes offsets, too."""


@dataclass
class _Found:
    """What has been read so far."""

    journal: str = ""
    owner: str = ""
    about: bytes = b""
    first: int = 0
    bodies: list[bytes] = field(default_factory=list)
    offsets: dict[int, int] = field(default_factory=dict)
    """Offset of each frame, by number."""

    def add(self, record: Any, topic: str) -> None:
        texts = {name: value.decode(errors="replace") for name, value in record.headers}
        if OWNER not in texts or JOURNAL not in texts:
            raise BrokerError(
                f"topic {topic!r} holds a record at offset {record.offset} that is no frame of a journal; expected a "
                "topic that only runs with dispatch.journal_topic write; name another"
            )
        self.owner, self.journal = texts[OWNER], texts[JOURNAL]
        if FRAME not in texts:
            self.about = record.value or b""
            return
        number = int(texts[FRAME])
        if not self.bodies:
            self.first = number
        place = number - self.first
        if not 0 <= place <= len(self.bodies):
            raise BrokerError(
                f"topic {topic!r} holds frame {number} at offset {record.offset}; expected frame "
                f"{self.first + len(self.bodies)}: the topic has lost records; restore it, or go on with the journal "
                "in the run's folder and another topic"
            )
        del self.bodies[place:]
        self.bodies.append(record.value or b"")
        self.offsets[number] = int(record.offset)

    def copied(self) -> CopiedFrames:
        return CopiedFrames(self.journal, self.owner, self.about, self.first, self.bodies)


class FrameTopic:
    """The frames of one journal, for one owner. Implements FrameCopy."""

    def __init__(self, config: KafkaConfig, topic: str, about: bytes = b"") -> None:
        """about: what the next owner should know, such as the run's settings."""
        self._config = config.model_copy(update={"request_seconds": min(config.request_seconds, ATTEMPT_SECONDS)})
        self._patient = config
        self._topic = topic
        self._about = about
        self._owner = ""
        self._journal = ""
        self._producer: TransactionalProducer | None = None
        self._offsets: dict[int, int] = {}
        self._largest_bytes = LARGEST_BYTES
        self._about_at = 0
        """Offset of the newest record that says what the next owner should know."""

    @property
    def name(self) -> str:
        return f"topic {self._topic!r}"

    def read(self) -> CopiedFrames:
        """All that is committed. Raises BrokerError if it cannot be read, or is not what owners have written."""
        return self._read().copied()

    def take(self, owner: str, after: str, journal: str) -> CopiedFrames:
        """As FrameCopy says; creates the topic if it is missing."""
        check_access(self._patient)
        with connect(self._patient) as admin:
            admin.create(TopicSpec(self._topic, 1, -1, {**FOREVER, "max.message.bytes": str(LARGEST_BYTES)}))
            topic = _checked(admin.describe(self._topic), self._topic)
        self._largest_bytes = min(LARGEST_BYTES, int(topic.configs.get("max.message.bytes", LARGEST_BYTES)))
        self._owner, self._journal = owner, journal
        try:
            self._check_owner(self._newest_owner(), after)  # already here: the next line stops whoever is the owner
            self._producer = self._open(self._patient, self._patient.request_seconds)
            found = self._read()
            self._check_owner(found.owner, after)
            if found.journal not in ("", journal):
                raise SinkError(
                    f"{self.name} holds another run's journal; expected an empty topic, or the copy of this journal; "
                    "name another topic"
                )
            self._about_at = self._commit(Message(b"", self._about, self._headers()))
        except (TransactionFailed, TimeoutError) as error:
            self.close()
            raise self._translated(error) from error
        except BaseException:
            self.close()
            raise
        self._offsets = found.offsets
        return found.copied()

    def append(self, number: int, body: bytes) -> None:
        if len(body) > self._largest_bytes - SPARE_BYTES:
            raise SinkError(
                f"a frame of {len(body):,} bytes does not fit into {self.name}, with {SPARE_BYTES:,} bytes around it; "
                f"expected at most {self._largest_bytes:,}; lower stream.batch, or raise the topic's max.message.bytes "
                f"(at most {LARGEST_BYTES:,} are used)"
            )
        try:
            self._offsets[number] = self._write(Message(b"", body, self._headers(number)))
        except (TransactionFailed, BrokerError, TimeoutError) as error:
            self.close()
            raise self._translated(error) from error

    def drop_before(self, number: int) -> None:
        if (offset := self._offsets.get(number)) is None or self._producer is None:
            return
        try:
            if self._about_at < offset:
                self._about_at = self._commit(Message(b"", self._about, self._headers()))
            with connect(self._config) as admin:
                admin.delete_before(self._topic, 0, offset)
        except (TransactionFailed, BrokerError, TimeoutError) as error:
            self.close()
            structlog.get_logger().warning("old frames of the journal stay on Kafka", reason=str(error))
            return
        self._offsets = {kept: at for kept, at in self._offsets.items() if kept >= number}

    def close(self) -> None:
        """Ends the session; the next frame begins another."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def _read(self, since: int = 0) -> _Found:
        """Everything from an offset on."""
        found = _Found()
        with connect(self._patient) as admin:
            topic = admin.describe(self._topic)
            if topic is None:
                return found
            _checked(topic, self._topic)
            first, end = admin.first_offsets(topic)[0], admin.end_offsets(topic)[0]
        for record in peek(self._patient, self._topic, {0: (max(first, since), end)}):
            found.add(record, self._topic)
        return found

    def _write(self, message: Message) -> int:
        """Commits a message, in another session if the last one failed or was ended by somebody's attempt to own."""
        if self._producer is not None:
            try:
                return self._commit(message)
            except (TransactionFenced, TransactionRefused):  # the broker forgets an id that was not used for a week
                self.close()
        self._check_owner(self._newest_owner())
        self._producer = bounded(ATTEMPT_SECONDS, partial(self._open, self._config, ATTEMPT_SECONDS))
        self._check_owner(self._newest_owner())  # nobody can become the owner between this and the next line
        return self._commit(message)

    def _check_owner(self, newest: str, after: str = "") -> None:
        if newest not in ("", self._owner, after):
            raise OwnerReplaced(f"{self.name} belongs to {newest} now, and not to {self._owner}")

    def _newest_owner(self) -> str:
        """Who wrote last; empty: nobody has."""
        with connect(self._config) as admin:
            topic = admin.describe(self._topic)
            if topic is None:
                return ""
            first, end = admin.first_offsets(topic)[0], admin.end_offsets(topic)[0]
        back = LOOK_BACK
        while True:
            since = max(first, end - back)
            found = _Found()
            for record in peek(self._config, self._topic, {0: (since, end)}):
                found.owner = dict(record.headers)[OWNER].decode()
            if found.owner or since == first:
                return found.owner
            back *= 8

    def _open(self, config: KafkaConfig, wait_seconds: float) -> TransactionalProducer:
        group = f"freshet-journal/{self._topic}"
        return TransactionalProducer(config, self._topic, group, LARGEST_BYTES, wait_seconds)

    def _commit(self, message: Message) -> int:
        assert self._producer is not None
        return bounded(ATTEMPT_SECONDS, partial(self._producer.commit, [message]))

    def _headers(self, number: int | None = None) -> list[tuple[str, bytes]]:
        texts = {OWNER: self._owner, JOURNAL: self._journal} | ({} if number is None else {FRAME: str(number)})
        return [(name, text.encode()) for name, text in texts.items()]

    def _translated(self, error: Exception) -> SinkError:
        if isinstance(error, TransactionFenced):
            return OwnerReplaced(f"{self.name} belongs to somebody else now, and not to {self._owner}")
        if isinstance(error, TransactionRefused):
            return SinkError(
                f"{self.name} cannot be written: {error}; expected a topic and a transactional id this user may write; "
                "check the broker's access rules"
            )
        return SinkUnavailable(f"{self.name} cannot be written now: {error}; try again")


def _checked(topic: Topic | None, name: str) -> Topic:
    """The topic; raises BrokerError if the broker would remove frames, or could reorder them."""
    if topic is None:
        raise BrokerError(f"topic {name!r} was deleted just now; expected it to stay; start again")
    wrong = [f"{key} = {topic.configs.get(key)}" for key, value in FOREVER.items() if topic.configs.get(key) != value]
    wrong += [f"{topic.partitions} partitions"] if topic.partitions != 1 else []
    if wrong:
        expected = ", ".join(f"{key} = {value}" for key, value in FOREVER.items())
        raise BrokerError(
            f"topic {name!r} cannot keep a journal: it has {', '.join(wrong)}; expected one partition, {expected}; "
            "alter the topic with Kafka's own tools, or name one that does not exist yet"
        )
    return topic

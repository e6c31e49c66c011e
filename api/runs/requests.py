"""Remembers which requests of devices have been written, so that a repeated request is not written twice.

A request's idempotency key is stored with its events: the key of every record is a tag that names the request and the
part of it. So the durable records themselves show what has been written, in the embedded log as well as in Kafka. If a
process crashes between an append and its answer, the parts that were written are known, and repeating the request
writes the others.

Before writing, a writer reads everything that was written since its last look, by any writer. A request is remembered
for an hour, unless more than 100,000 records have followed it in its partitions.
"""

import struct
from dataclasses import dataclass
from hashlib import blake2b
from time import time
from typing import NamedTuple

from infra.web.errors import KeyReused
from ingest.streams.source import Source

KEPT_SECONDS = 3600.0
KEPT_RECORDS = 100_000
"""Number of records of each partition, from its end, that are searched for tags."""
KEPT_REQUESTS = 100_000
MOST_EVENTS = 10_000
"""The most events of a request, and so the most records that it has."""
READ_BYTES = 1 << 20
MARK = b"\xffrequest"
"""The first bytes of a tag. Other keys of records are text, which cannot begin with these bytes."""
TAG = struct.Struct(f"<{len(MARK)}s16s8sII")


class RequestId(NamedTuple):
    """The identity of a request, as its tags contain it."""

    request: bytes
    """Digest of the sender's name and the idempotency key."""
    content: bytes
    """Digest of the body."""
    parts: int
    """Number of records of the request."""

    def tag(self, part: int) -> bytes:
        """The key of one of the request's records."""
        return TAG.pack(MARK, self.request, self.content, part, self.parts)


def request_id(actor: str, key: str, body: bytes, parts: int) -> RequestId:
    request = blake2b(f"{actor}\0{key}".encode(), digest_size=16)
    return RequestId(request.digest(), blake2b(body, digest_size=8).digest(), parts)


def parse_tag(key: bytes | None) -> tuple[RequestId, int] | None:
    """The request and the part that the key of a record names; None if the key is not a tag."""
    if key is None or len(key) != TAG.size or not key.startswith(MARK):
        return None
    _, request, content, part, parts = TAG.unpack(key)
    return (RequestId(request, content, parts), part) if part < parts <= MOST_EVENTS else None


@dataclass(slots=True)
class _Seen:
    """A request that was seen. Its size does not depend on the number of parts, since many are kept for an hour."""

    content: bytes
    parts: int
    missing: int
    """Parts that are not written yet, as a bit set; 0 once all are written."""
    at_seconds: float
    """Time at which its newest part was appended, in seconds since 1970."""


class WrittenRequests:
    """The requests whose events are in a stream."""

    def __init__(self) -> None:
        self._seen: dict[bytes, _Seen] = {}
        """Requests by their digest, oldest first."""
        self._next: dict[int, int] = {}
        """Offset after the last record that was read, by partition."""

    def read_new(self, source: Source) -> None:
        """Reads the records since the last call; the first call goes back as far as requests are remembered."""
        for partition in source.partitions():
            first, end = source.span(partition)
            at = max(self._next.get(partition, first), first, end - KEPT_RECORDS)
            while records := source.read(partition, at, READ_BYTES):
                for record in records:
                    if (tagged := parse_tag(record.key)) is not None:
                        self.add(*tagged, record.time_ms / 1000)
                at = records[-1].offset + 1
            self._next[partition] = at
        self._forget(time() - KEPT_SECONDS)

    def missing(self, wanted: RequestId) -> list[int]:
        """The parts of a request that are not written yet; raises KeyReused if its key was used for other events."""
        seen = self._seen.get(wanted.request)
        if seen is None:
            return list(range(wanted.parts))
        if (seen.content, seen.parts) != (wanted.content, wanted.parts):
            raise KeyReused(
                "the idempotency key was used for other events; expected the same body; choose a new key for new events"
            )
        return [part for part in range(wanted.parts) if seen.missing >> part & 1]

    def add(self, written: RequestId, part: int, at_seconds: float) -> None:
        """Notes that a part of a request is durable."""
        seen = self._seen.pop(written.request, None)
        if seen is None or (seen.content, seen.parts) != (written.content, written.parts):
            seen = _Seen(written.content, written.parts, (1 << written.parts) - 1, at_seconds)
        seen.missing &= ~(1 << part)
        seen.at_seconds = max(seen.at_seconds, at_seconds)
        self._seen[written.request] = seen

    def _forget(self, until: float) -> None:
        """Forgets requests whose newest part is older than that, and the oldest ones above the limit."""
        while self._seen:
            oldest = next(iter(self._seen))
            if len(self._seen) <= KEPT_REQUESTS and self._seen[oldest].at_seconds >= until:
                return
            del self._seen[oldest]

"""Which requests of devices have been written, so that one that is sent again is not written again.

A request's idempotency key goes with its events: every record has a tag as its key, which says of which request it is,
and which part of it. So what is durable tells by itself what has been written, in the embedded log as on Kafka: a crash
between an append and its answer leaves parts that are known, and the same request, sent again, writes the others.

Whoever writes looks first at what was written since it looked the last time, by whom ever. A request is known for an
hour, and as long as at most 100,000 records have come after it in its partitions.
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
"""of each partition that are looked at"""
KEPT_REQUESTS = 100_000
MOST_EVENTS = 10_000
"""of a request, and so the most records that it has"""
READ_BYTES = 1 << 20
MARK = b"\xffrequest"
"""how a tag begins; no text does, as the values of fields by which partitions are chosen are"""
TAG = struct.Struct(f"<{len(MARK)}s16s8sII")


class RequestId(NamedTuple):
    """A request as its tags know it."""

    request: bytes
    """of who sent it and its key"""
    content: bytes
    """of its body"""
    parts: int
    """how many records it has"""

    def tag(self, part: int) -> bytes:
        """The key of one of its records."""
        return TAG.pack(MARK, self.request, self.content, part, self.parts)


def request_id(actor: str, key: str, body: bytes, parts: int) -> RequestId:
    request = blake2b(f"{actor}\0{key}".encode(), digest_size=16)
    return RequestId(request.digest(), blake2b(body, digest_size=8).digest(), parts)


def parse_tag(key: bytes | None) -> tuple[RequestId, int] | None:
    """The request and the part that the key of a record names; None if it is no tag."""
    if key is None or len(key) != TAG.size or not key.startswith(MARK):
        return None
    _, request, content, part, parts = TAG.unpack(key)
    return (RequestId(request, content, parts), part) if part < parts <= MOST_EVENTS else None


@dataclass(slots=True)
class _Seen:
    """Many are kept for an hour: a request that is written takes the same room, however many parts it has."""

    content: bytes
    parts: int
    missing: int
    """parts that are not written, a bit each: 0 once all are"""
    at_seconds: float
    """when its newest part was appended, since 1970"""


class WrittenRequests:
    """The requests whose events are in a stream."""

    def __init__(self) -> None:
        self._seen: dict[bytes, _Seen] = {}
        """by request; the oldest first"""
        self._next: dict[int, int] = {}
        """offset after the last record that was looked at, by partition"""

    def read_new(self, source: Source) -> None:
        """Takes in what was written since the last look; the first goes back as far as requests are known."""
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
        """Parts of a request that are not written yet; raises KeyReused if its key was used for another."""
        seen = self._seen.get(wanted.request)
        if seen is None:
            return list(range(wanted.parts))
        if (seen.content, seen.parts) != (wanted.content, wanted.parts):
            raise KeyReused(
                "the idempotency key was used for other events; expected the same body; choose a new key for new events"
            )
        return [part for part in range(wanted.parts) if seen.missing >> part & 1]

    def add(self, written: RequestId, part: int, at_seconds: float) -> None:
        """A part of a request is durable."""
        seen = self._seen.pop(written.request, None)
        if seen is None or (seen.content, seen.parts) != (written.content, written.parts):
            seen = _Seen(written.content, written.parts, (1 << written.parts) - 1, at_seconds)
        seen.missing &= ~(1 << part)
        seen.at_seconds = max(seen.at_seconds, at_seconds)
        self._seen[written.request] = seen

    def _forget(self, until: float) -> None:
        """Those whose newest part is older than that, and the oldest above the most."""
        while self._seen:
            oldest = next(iter(self._seen))
            if len(self._seen) <= KEPT_REQUESTS and self._seen[oldest].at_seconds >= until:
                return
            del self._seen[oldest]

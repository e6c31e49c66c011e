"""Events in the body of a request: their formats, and which errors are reported; not how they are used.

A body is one event, a list of events, one event per line, or a packed record.
"""

import re
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from fastapi import Request

from infra.web.answers import Answer
from infra.web.errors import BadRequest, TooLarge
from ingest.codec.decoder import Decoded, Decoder
from ingest.codec.packed import is_packed
from ingest.streams.position import Position
from ingest.streams.source import Record

LINE = re.compile(rb"\S[^\n]*")
"""A line that is not blank."""
MOST_REJECTS = 1000
"""Most rejected events of a request that are listed."""


def describe_body(example: dict[str, Any]) -> dict[str, Any]:
    """Returns the description of a request body for OpenAPI; example: one event."""
    return {
        "required": True,
        "content": {
            "application/json": {"schema": {"anyOf": [{"type": "object"}, {"type": "array"}]}, "example": [example]},
            "application/x-ndjson": {"schema": {"type": "string"}},
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        },
    }


async def read_body(request: Request, what: str) -> bytes:
    """Returns the body of a request; raises BadRequest if it is empty. what: the expected content, for the message."""
    body = await request.body()
    if not body or body.isspace():
        raise BadRequest(f"the body is empty; expected {what}")
    return body


class RejectedEvent(Answer):
    """An event of a request that does not fit the schema and is not used."""

    index: int
    """Its place in the request, from 0."""
    reason: str


class DecodedBody(NamedTuple):
    """The events of a body."""

    payloads: list[bytes]
    """Each event as it arrived; for a packed record, the record."""
    is_packed: bool
    decoded: Decoded

    @property
    def rejects(self) -> list[RejectedEvent]:
        """The first events that do not fit."""
        places = [reject.position for reject in self.decoded.rejects]
        indices = [place.index if self.is_packed else place.offset for place in places]
        reasons = (reject.reason for reject in self.decoded.rejects)
        first = islice(zip(indices, reasons, strict=True), MOST_REJECTS)
        return [RejectedEvent(index=index, reason=reason) for index, reason in first]


def decode_body(decoder: Decoder, body: bytes, most: int, unknown: list[bytes] | None = None) -> DecodedBody:
    """Decodes the events of a body.

    Raises BadRequest, and TooLarge if there are more than ``most`` events, unless they are packed. unknown: events with
    fields that the schema does not know are added to this list.
    """
    packed = is_packed(body)
    payloads = [body] if packed else split_events(body, most)
    records = [Record(at, None, each, 0) for at, each in enumerate(payloads)]
    return DecodedBody(payloads, packed, decoder.decode(records, Position(0), unknown))


def split_events(body: bytes, most: int) -> list[bytes]:
    """Returns the events of a body that is not packed, each as it arrived.

    Raises BadRequest, or TooLarge if there are more than ``most``; they are counted before they are decoded.
    """
    if body.lstrip()[:1] == b"[":
        return _split_list(body, most)
    lines = [line.group().rstrip() for line in islice(LINE.finditer(body), most + 1)]
    if len(lines) > most:
        raise _too_many(most)
    return lines


def _split_list(body: bytes, most: int) -> list[bytes]:
    from ingest.codec.structure import TOO_DEEP, count_items  # loads numba, as the decoder does

    found = count_items(body, most)
    if found == TOO_DEEP:
        raise BadRequest("the body is nested too deeply; expected events")
    if found > most:
        raise _too_many(most)
    try:
        events = [bytes(event) for event in msgspec.json.decode(body, type=list[msgspec.Raw])]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is no list of events: {error}; expected JSON; correct it") from error
    if not events:
        raise BadRequest("the list is empty; expected events")
    return events


def _too_many(most: int) -> TooLarge:
    return TooLarge(f"more than {most} events; expected at most as many; send several requests")

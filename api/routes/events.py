"""The events of a run, as server-sent events.

Records of the journal have an id, ``CURSOR.PLACE``: a client that reconnects with the last id that it received misses
nothing and gets nothing twice. Statuses are sent between them, without an id, whenever there is a new one, but at most
one a second. A slow client delays only itself: the next events are read from the database once it has taken the
previous ones. At most one page of events is held in memory for it.
"""

import asyncio
from collections.abc import AsyncIterator
from time import monotonic
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import StreamingResponse

from api.parts import ApiParts, Parts
from api.routes.common import Followed, etag
from api.runs.followed import FollowedRun
from api.store.rows import StoredEvent
from dispatch.commands.registry import shown_value
from infra.web.errors import DatabaseAway
from infra.web.rules import needs

PAGE = 50
"""Number of events that are read at once, and so the most that are held for a client that reads slowly."""
LOOK_SECONDS = 1.0
"""The least time between two statuses, and the time after which events are looked for even without a notification."""
HEARTBEAT_SECONDS = 10.0
FAR = (1 << 62) - 1
RESTATED = ("begun", "generation")
"""Records that the record of a checkpoint repeats inside itself."""
EventId = Annotated[
    str | None,
    Header(alias="Last-Event-ID", pattern=r"^[0-9]{1,18}\.[0-9]{1,9}$", description="id of the last event received"),
]
AfterCursor = Annotated[
    int | None, Query(ge=0, le=FAR, description="begin with what follows this cursor; by default with what is new")
]
router = APIRouter(tags=["events"])


@router.get(
    "/v1/runs/{run}/events",
    summary="Server-sent events",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "A stream that ends when the API does",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        }
    },
    **needs("read"),
)
async def stream_events(
    run: Followed, parts: Parts, last_event_id: EventId = None, after: AfterCursor = None
) -> Response:
    """Changes of members and α, commands, checkpoints, faults, and statuses between them."""
    if last_event_id is not None:
        cursor, place = map(int, last_event_id.split("."))
    else:
        cursor = run.cursor if after is None else after
        place = FAR
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "ETag": etag(run.cursor)}
    stream = EventStream(parts, run, cursor, place)
    return StreamingResponse(stream.lines(), media_type="text/event-stream", headers=headers)


class EventStream:
    """One client's stream."""

    def __init__(self, parts: ApiParts, run: FollowedRun, cursor: int, place: int) -> None:
        """``cursor`` and ``place`` are those of the last event that the client has received."""
        self._parts = parts
        self._run = run
        self._cursor = cursor
        self._place = place
        self._told: object = None
        """The status that was sent last."""
        self._told_at = -LOOK_SECONDS
        """When that was, in monotonic time."""

    async def lines(self) -> AsyncIterator[bytes]:
        """Yields the stream until the process is about to end or the client disconnects."""
        sent_at = 0.0
        while not self._parts.closing.is_set():
            changed = self._run.projector.changed
            while lines := await self._next():
                yield lines
                sent_at = monotonic()
            if (status := self._status()) is not None:
                yield b"event: status\ndata: " + status + b"\n\n"
                sent_at = monotonic()
            elif monotonic() - sent_at > HEARTBEAT_SECONDS:
                yield b": still here\n\n"
                sent_at = monotonic()
            await self._wait(changed)

    async def _next(self) -> bytes:
        """The events after the last one sent, encoded; empty while the database is unavailable."""
        # The last frame is read again, because the client may have received only some of its events.
        reading = self._parts.store.runs.events(self._run.place.name, max(0, self._cursor - 1), PAGE)
        try:
            # The query is completed even if the client disconnects: a connection that is abandoned in the middle of a
            # query is lost to the pool.
            found = await asyncio.shield(reading)
        except DatabaseAway:
            return b""
        new = [event for event in found if (event.cursor, event.place) > (self._cursor, self._place)]
        if new:
            self._cursor = new[-1].cursor
            self._place = new[-1].place
        return b"".join(map(_line, new))

    def _status(self) -> bytes | None:
        """The newest status, encoded, if it is new and a second has passed since the one before."""
        status = self._run.live.status
        if status is None or status is self._told or monotonic() - self._told_at < LOOK_SECONDS:
            return None
        self._told = status
        self._told_at = monotonic()
        return self._run.live.encoded

    async def _wait(self, changed: asyncio.Event) -> None:
        """Waits until there are new rows, a second has passed, or the process is about to end."""
        waits = [asyncio.create_task(event.wait()) for event in (changed, self._parts.closing)]
        try:
            await asyncio.wait(waits, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


def _line(event: StoredEvent) -> bytes:
    where = {"cursor": event.cursor, "version": event.cursor}  # the second name is deprecated, for one more release
    body = msgspec.json.encode({**where, "at": event.at, **shown_record(event.body)})
    return f"id: {event.cursor}.{event.place}\nevent: {event.kind}\ndata: ".encode() + body + b"\n\n"


def shown_record(record: dict[str, Any]) -> dict[str, Any]:
    """A record of the journal with typed values, and null for values that it does not have."""
    shown = dict(record)
    if "verb" in record:
        shown["worker"] = record["worker"] or None
        shown["value"] = shown_value(record["verb"], record["value"])
    if "settings" in record:
        shown["settings"] = {name: _typed(written) for name, written in record["settings"].items()}
    if "at_seconds" in record:
        shown["at_seconds"] = record["at_seconds"] or None
    restated = {name: shown_record(record[name]) for name in RESTATED if isinstance(record.get(name), dict)}
    return shown | restated


def _typed(written: str) -> Any:
    """The value of a setting, parsed as JSON; text that is not JSON is returned unchanged."""
    try:
        return msgspec.json.decode(written)
    except msgspec.DecodeError:
        return written

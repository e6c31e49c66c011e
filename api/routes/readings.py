"""What a dashboard draws besides statuses: readings, records of the journal by time, dead letters, processes."""

import asyncio
from contextlib import suppress
from pathlib import Path
from time import time
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response

from api.models.history import DeadLetterReading, JournalRecordReading, ProcessReading, ReadingsAnswer
from api.parts import Parts
from api.routes.common import Followed, Known, history_answer
from api.routes.events import shown_record
from api.runs.recent import KeptReading, RecentReadings, resident_bytes, thinned
from api.store.records import Window
from dispatch.errors import CommandRefused, NoAnswer
from infra.web.answers import Listed
from infra.web.errors import Conflict, DatabaseAway, NotAvailable
from infra.web.rules import needs
from ingest.errors import LogError
from ingest.letters.embedded import newest_dead_letters
from ingest.letters.letter import DeadLetter

LATEST = 1e11
MOST_LETTERS = 100
"""The most dead letters that are read for an answer."""
SHOWN_LETTERS = 600
"""Characters of an event and of its reason that are shown."""
Moment = Annotated[float | None, Query(ge=0, le=LATEST, description="seconds since 1970")]
Kinds = Annotated[list[str] | None, Query(max_length=20, description="of these kinds alone; may be repeated")]
router = APIRouter(prefix="/v1/runs/{run}", tags=["history"])


@router.get("/readings", summary="Recent readings, downsampled", response_model=ReadingsAnswer, **needs("read"))
async def list_readings(
    run: Known,
    parts: Parts,
    request: Request,
    first: Moment = None,
    last: Moment = None,
    points: Annotated[int, Query(ge=1, le=2000)] = 400,
) -> Response:
    """Oldest first, from after first to last: one a second of the latest quarter of an hour, fewer of what was before.

    There are none of the time in which no API followed the run.
    """
    begin, end = 0.0 if first is None else first, LATEST if last is None else last
    recent = parts.runs.get(run).recent if run in parts.runs else RecentReadings()
    found = recent.between(begin, end)
    if begin < recent.begins_at:
        with suppress(DatabaseAway):
            before = await parts.store.runs.readings(run, begin, min(end, recent.begins_at), points)
            found[:0] = [KeptReading(each.at, each.body.encode()) for each in before if each.at < recent.begins_at]
    body = msgspec.json.encode({"now": time(), "items": thinned(found, points)})
    return history_answer(body, request, {})


@router.get(
    "/journal", summary="Records of the journal, by time", response_model=Listed[JournalRecordReading], **needs("read")
)
async def list_records(
    run: Known,
    parts: Parts,
    request: Request,
    response: Response,
    kind: Kinds = None,
    first: Moment = None,
    last: Moment = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    points: Annotated[int | None, Query(ge=1, le=1000)] = None,
) -> Response:
    """Newest first: commands, changes of α, who takes part and why, generations, checkpoints, faults; not steps.

    Of more than the limit, these are the newest. With points and kinds, they are spread over the whole window instead:
    of each kind, the newest in each of so many parts of it.
    """
    window = Window(first, last)
    if points is not None and kind:
        found = await parts.store.runs.thinned_records(run, sorted(set(kind)), window, points)
    else:
        found = await parts.store.runs.records(run, kind or (), window, limit)
    items = [
        {"cursor": each.cursor, "place": each.place, "kind": each.kind, "at": each.at, "body": _brief(each.body)}
        for each in found
    ]
    body = msgspec.json.encode({"items": items, "next": None})
    return history_answer(body, request, response.headers)


@router.get("/processes", summary="Processes of a run, with their memory", **needs("read"))
async def list_processes(run: Followed) -> Listed[ProcessReading]:
    """As its supervisor describes them; none if it is not on this machine, or does not answer."""
    try:
        processes = await asyncio.to_thread(run.outbox.processes)
    except (CommandRefused, NoAnswer):
        processes = {}
    memory = resident_bytes({name: each.pid for name, each in processes.items() if each.pid})
    items = [
        ProcessReading(
            name=name, state=each.state, restarts=each.restarts, seconds=each.seconds, bytes=memory.get(name)
        )
        for name, each in processes.items()
    ]
    return Listed(items=items, next=None)


@router.get("/dead-letters", summary="Examples of rejected events, newest first", **needs("control"))
async def list_dead_letters(
    run: Followed, limit: Annotated[int, Query(ge=1, le=MOST_LETTERS)] = 20
) -> Listed[DeadLetterReading]:
    """The newest of a run on the embedded log, found among the last few of its topic; events hold what users did."""
    stream = run.place.settings.get("stream", {})
    if stream.get("source") != "log":
        raise Conflict(
            f"the dead letters of run {run.place.name!r} are on Kafka; expected a run on the embedded log; read them "
            "with 'freshet dead-letters --kafka'"
        )
    folder, origin = Path(stream["folder"]), f"{run.place.name}/{stream['topic']}"
    try:
        found = await asyncio.to_thread(newest_dead_letters, folder, stream["dead_letter_topic"], origin, MOST_LETTERS)
    except (LogError, OSError) as error:
        raise NotAvailable(f"the dead letters cannot be read now: {error}; try again later") from error
    return Listed(items=[_letter(each) for each in found[:limit]], next=None)


def _letter(letter: DeadLetter) -> DeadLetterReading:
    return DeadLetterReading(
        partition=letter.partition,
        offset=letter.offset,
        index=letter.index,
        reason=letter.reason[:SHOWN_LETTERS],
        at=letter.time_ms / 1000 or None,
        payload=letter.payload[:SHOWN_LETTERS].decode(errors="backslashreplace"),
        bytes=len(letter.payload) if letter.size is None else letter.size,
    )


def _brief(body: dict[str, Any]) -> dict[str, Any]:
    """A record without the records that it repeats, and without positions."""
    left_out = ("is", "begun", "generation", "settings", "positions", "start")
    return {name: value for name, value in shown_record(body).items() if name not in left_out or value is None}

"""What a dashboard draws besides statuses: recent readings, records of the journal by time, and processes."""

import asyncio
from contextlib import suppress
from time import time
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response

from api.models.history import JournalRecordReading, ProcessReading, ReadingsAnswer
from api.parts import Parts
from api.routes.common import Followed, Known, history_answer
from api.routes.events import shown_record
from api.runs.recent import KeptReading, RecentReadings, resident_bytes, thinned
from api.store.records import Window
from dispatch.errors import CommandRefused, NoAnswer
from infra.web.answers import Listed
from infra.web.errors import DatabaseAway
from infra.web.rules import needs

LATEST = 1e11
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
    items = [vars(each) | {"body": _brief(each.body)} for each in found]
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


def _brief(body: dict[str, Any]) -> dict[str, Any]:
    """A record without the records that it repeats, and without positions."""
    left_out = ("is", "begun", "generation", "settings", "positions", "start")
    return {name: value for name, value in shown_record(body).items() if name not in left_out or value is None}

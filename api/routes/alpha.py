"""α: the share that is solved exactly, who set it, and why."""

import asyncio
from contextlib import suppress

from fastapi import APIRouter, Response

from api.models.runs import AlphaReading, SetAlpha
from api.parts import ApiParts, Parts
from api.routes.common import COMMAND_RESPONSES, Followed, Given, etag, give
from api.store.rows import StoredAlphaChange
from dispatch.commands.alpha import AlphaCommand
from dispatch.progress.status import Status
from infra.web.errors import DatabaseAway
from infra.web.rules import needs

HISTORY_SECONDS = 1.0
"""How long to wait for the database to return the last change of a run whose dispatcher does not answer."""
router = APIRouter(prefix="/v1/runs/{run}/alpha", tags=["alpha"])


@router.get("", summary="α, and why it is so", **needs("read"))
async def read_alpha(run: Followed, parts: Parts, response: Response) -> AlphaReading:
    """The value that is set, the value in force, and the readings behind the last change, from the dispatcher."""
    response.headers["ETag"] = etag(run.cursor)
    status = run.live.status or Status(run=run.place.name)
    last = await _last_change(parts, run.place.name) if run.live.is_silent else None
    return AlphaReading(
        set_value=status.alpha if status.alpha_mode == "manual" else None,
        value=status.alpha,
        mode=status.alpha_mode,
        backend=status.opt_backend,
        reason=last.reason if last is not None else status.alpha_reason,
        readings=status.alpha_readings or (last.readings if last is not None else {}),
        changed_at=last.at if last is not None else status.alpha_changed_at,
    )


async def _last_change(parts: ApiParts, run: str) -> StoredAlphaChange | None:
    """The last change in the database; None if there is none, or the database is unavailable."""
    with suppress(DatabaseAway, TimeoutError):
        page = await asyncio.wait_for(parts.store.runs.alpha_changes(run, None, 1), HISTORY_SECONDS)
        return page.rows[0] if page.rows else None
    return None


@router.put("", summary="Set α, or have the dispatcher decide", responses=COMMAND_RESPONSES, **needs("control"))
async def set_alpha(run: Followed, parts: Parts, given: Given, body: SetAlpha) -> Response:
    """In force from the next decided step on. A value overrides the dispatcher's own choice until it is released."""
    return await give(parts, run, given, AlphaCommand(None if body.value == "auto" else body.value), body.reason)


@router.delete("", summary="Have the dispatcher decide α", responses=COMMAND_RESPONSES, **needs("control"))
async def release_alpha(run: Followed, parts: Parts, given: Given) -> Response:
    """The same as setting it to auto."""
    return await give(parts, run, given, AlphaCommand(None))

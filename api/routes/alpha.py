"""α: how much is solved exactly, by whom it is set, and why."""

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
"""how long to wait for the last change of a run whose dispatcher is away"""
router = APIRouter(prefix="/v1/runs/{run}/alpha", tags=["alpha"])


@router.get("", summary="α, and why it is so", **needs("read"))
async def read_alpha(run: Followed, parts: Parts, response: Response) -> AlphaReading:
    """What is set and what is in force, and what the last change was decided by: as the dispatcher tells."""
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
    """As SQL has it, for a run whose dispatcher is away."""
    with suppress(DatabaseAway, TimeoutError):
        page = await asyncio.wait_for(parts.store.runs.alpha_changes(run, None, 1), HISTORY_SECONDS)
        return page.rows[0] if page.rows else None
    return None


@router.put("", summary="Set α, or have the dispatcher decide", responses=COMMAND_RESPONSES, **needs("control"))
async def set_alpha(run: Followed, parts: Parts, given: Given, body: SetAlpha) -> Response:
    """In force from the next decided step on. A value wins over the dispatcher's own until it is released."""
    return await give(parts, run, given, AlphaCommand(None if body.value == "auto" else body.value), body.reason)


@router.delete("", summary="Have the dispatcher decide α", responses=COMMAND_RESPONSES, **needs("control"))
async def release_alpha(run: Followed, parts: Parts, given: Given) -> Response:
    """The same as setting it to auto."""
    return await give(parts, run, given, AlphaCommand(None))

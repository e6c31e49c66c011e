"""Runs: listing and reading them, and starting, stopping and pausing them."""

import asyncio
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from api.models.runs import NewRun, RunDetails, RunOutline, StartedRun, Why
from api.parts import ApiParts, Parts
from api.routes.common import (
    COMMAND_RESPONSES,
    After,
    Followed,
    Given,
    Limit,
    RunName,
    etag,
    give,
    listed,
    page_of,
)
from api.store.rows import StoredRun
from dispatch.commands.client import ask
from dispatch.commands.pause import PauseCommand, ResumeCommand
from dispatch.commands.stop import StopCommand
from dispatch.commands.supervision import STARTER, StartRun
from dispatch.errors import CommandRefused, NoAnswer
from infra.base.run_folder import AGENT, is_run, read_endpoint
from infra.web.answers import Listed
from infra.web.errors import Conflict, DatabaseAway, NotAvailable
from infra.web.rules import needs
from infra.web.store.rows import Page

START_SECONDS = 10.0
NO_STATUS = b"null"
router = APIRouter(prefix="/v1/runs", tags=["runs"])


@router.get("", summary="All runs", **needs("read"))
async def list_runs(
    parts: Parts, request: Request, response: Response, after: After = None, limit: Limit = 100
) -> Listed[RunOutline]:
    """By name. While the database is unavailable, only runs whose folder is here are listed."""
    try:
        page: Page[Any] = await parts.store.runs.list(after, limit)
    except DatabaseAway:
        page = page_of(parts.runs.names, after, limit)
    return listed(page, lambda row: outline(parts, row), request, response)


@router.get("/{run}", summary="One run", response_model=RunDetails, **needs("read"))
async def read_run(run: RunName, parts: Parts) -> Response:
    """The status that its dispatcher published last. Only a run whose folder is gone is read from the database."""
    stored = None if run in parts.runs else await parts.store.runs.get(run)
    if stored is None:
        body, tag = status_of(parts, run)  # there may be a folder by now; raises an error if there is none
    else:
        body = details(outline(parts, stored), stored.folder, stored.topic, NO_STATUS, is_live=False)
        tag = etag(stored.cursor)
    return Response(body, headers={"ETag": tag}, media_type="application/json")


@router.post(
    "",
    status_code=202,
    summary="Start a run",
    responses={202: {"model": StartedRun, "description": "The run is being started"}},
    **needs("control"),
)
async def create_run(body: NewRun, parts: Parts, given: Given) -> Response:
    """Needs an agent that starts runs in the folder of runs. The name is the idempotency key: one name, one run."""
    endpoint = None if is_run(parts.runs.root) else read_endpoint(parts.runs.root, AGENT)
    if endpoint is None:
        raise Conflict(
            "no agent starts runs here; expected one that listens at endpoints/agent in the folder of runs; start the "
            "run by 'freshet up'"
        )
    message = StartRun(run=body.name, generation=-1, step=-1, settings=body.as_text())
    try:
        await asyncio.to_thread(ask, endpoint, message, STARTER, None, START_SECONDS)
    except CommandRefused as error:
        raise Conflict(str(error)) from error
    except NoAnswer as error:
        raise NotAvailable(str(error)) from error
    parts.runs.expect(body.name)
    return JSONResponse(StartedRun(name=body.name).model_dump(), 202, {"Location": f"/v1/runs/{body.name}"})


@router.post("/{run}/stop", summary="Stop a run in order", responses=COMMAND_RESPONSES, **needs("control"))
async def stop_run(run: Followed, parts: Parts, given: Given, body: Why | None = None) -> Response:
    """The run takes a checkpoint before it stops, and can be resumed later."""
    return await give(parts, run, given, StopCommand(), body.reason if body else "")


@router.post("/{run}/pause", summary="Pause a run", responses=COMMAND_RESPONSES, **needs("control"))
async def pause_run(run: Followed, parts: Parts, given: Given, body: Why | None = None) -> Response:
    """Steps under way are completed; events wait in their topic."""
    return await give(parts, run, given, PauseCommand(), body.reason if body else "")


@router.post("/{run}/resume", summary="Go on after a pause", responses=COMMAND_RESPONSES, **needs("control"))
async def resume_run(run: Followed, parts: Parts, given: Given, body: Why | None = None) -> Response:
    """Ends a pause, no matter who began it."""
    return await give(parts, run, given, ResumeCommand(), body.reason if body else "")


def outline(parts: ApiParts, row: StoredRun | str) -> RunOutline:
    """The outline of a run in the database, or of a run whose folder is here, by its name."""
    name, state, cursor = (row, "silent", 0) if isinstance(row, str) else (row.name, row.state, row.cursor)
    status = None
    if name in parts.runs:
        run = parts.runs.get(name)
        status, cursor = run.live.status, max(cursor, run.cursor)
        is_over = state in ("stopped", "ended")
        if status is not None and not run.live.is_silent:
            state = status.state
        elif run.is_starting:
            state = "starting"
        elif not is_over:
            state = "silent"
    step, samples = (status.step, status.samples) if status is not None else (None, None)
    return RunOutline(name=name, state=state, cursor=cursor, step=step, samples=samples, is_here=name in parts.runs)


def status_of(parts: ApiParts, name: str) -> tuple[bytes, str]:
    """The encoded RunDetails of a run whose folder is here, and its ETag; shared by all readers until it changes."""
    run = parts.runs.get(name)
    is_live = not run.live.is_silent
    of_what = run.live.encoded, run.cursor, is_live, run.is_starting
    if run.cached_answer is None or run.cached_answer[0] != of_what:
        brief = outline(parts, name)
        body = details(brief, str(run.place.folder), run.place.topic(), run.live.encoded, is_live)
        run.cached_answer = of_what, (body, etag(brief.cursor))
    return run.cached_answer[1]


def details(brief: RunOutline, folder: str, topic: str, status: bytes, is_live: bool) -> bytes:
    """Encodes a RunDetails; ``status`` is encoded already."""
    shown = {
        **brief.model_dump(),
        "folder": folder,
        "topic": topic,
        "status": msgspec.Raw(status),
        "is_live": is_live,
    }
    return msgspec.json.encode(shown)

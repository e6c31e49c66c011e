"""The history of a run, from the database: steps, generations, checkpoints, faults, commands; and the audit trail."""

import math
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import RedirectResponse

from api.models.history import AuditReading, CheckpointReading, FaultReading, GenerationReading, StepsPoint
from api.models.runs import CommandReading
from api.parts import Parts
from api.routes.common import After, Known, Limit, history_answer, link_next, listed
from api.shared import EncodedPage
from api.store.rows import StepPoint
from infra.base.config import NAME_PATTERN
from infra.web.answers import Listed
from infra.web.errors import BadRequest, NotFound
from infra.web.rules import needs

MOST_STEP = (1 << 62) - 1
StepNumber = Annotated[int | None, Query(ge=0, le=MOST_STEP)]
Points = Annotated[int, Query(ge=1, le=2000, description="about how many points all of it comes in")]
CommandId = Annotated[str, Path(pattern=NAME_PATTERN, max_length=64, examples=["1c5a0f6ad1c94c0c8c9b2f5d4c8f9a10"])]
RunFilter = Annotated[str | None, Query(pattern=NAME_PATTERN, max_length=64, description="of this run alone")]
router = APIRouter(tags=["history"])


@dataclass(frozen=True)
class StepRange:
    """The range of steps that is requested, and the number of points to return."""

    first: int | None
    last: int | None
    points: int


async def step_range(first: StepNumber = None, last: StepNumber = None, points: Points = 500) -> StepRange:
    return StepRange(first, last, points)


@router.get("/v1/runs/{run}/steps", summary="Steps, downsampled", response_model=Listed[StepsPoint], **needs("read"))
async def list_steps(
    run: Known,
    parts: Parts,
    request: Request,
    response: Response,
    asked: Annotated[StepRange, Depends(step_range)],
    after: After = None,
    limit: Limit = 1000,
) -> Response:
    """Oldest first. All pages together have about as many points as requested; a point covers one or more steps."""
    start, cursor = _step(after), await parts.store.runs.cursor(run)

    async def read() -> EncodedPage:
        found = await parts.store.runs.steps(run, asked.first, asked.last, asked.points)
        rows = [point for point in found if point.first_step >= start]
        following = str(rows[limit].first_step) if len(rows) > limit else None
        items = [_point(row) for row in rows[:limit]]
        return EncodedPage(msgspec.json.encode({"items": items, "next": following}), following)

    page = await parts.answers.get((run, cursor, asked, start, limit), read)
    link_next(page.next, request, response)
    return history_answer(page.body, request, response.headers)


@router.get("/v1/runs/{run}/generations", summary="Generations", **needs("read"))
async def list_generations(
    run: Known, parts: Parts, request: Request, response: Response, after: After = None, limit: Limit = 100
) -> Listed[GenerationReading]:
    """Newest first."""
    page = await parts.store.runs.generations(run, after, limit)
    return listed(page, GenerationReading.model_validate, request, response)


@router.get("/v1/runs/{run}/checkpoints", summary="Checkpoints", **needs("read"))
async def list_checkpoints(
    run: Known, parts: Parts, request: Request, response: Response, after: After = None, limit: Limit = 100
) -> Listed[CheckpointReading]:
    """Newest first."""
    page = await parts.store.runs.checkpoints(run, after, limit)
    return listed(page, CheckpointReading.model_validate, request, response)


@router.get("/v1/runs/{run}/cuts", include_in_schema=False, **needs("read"))
async def redirect_to_checkpoints(run: str, request: Request) -> RedirectResponse:
    """Redirects from the path of earlier releases."""
    place = request.url.path.removesuffix("cuts") + "checkpoints"
    return RedirectResponse(place + (f"?{request.url.query}" if request.url.query else ""), status_code=308)


@router.get("/v1/runs/{run}/faults", summary="Faults", **needs("read"))
async def list_faults(
    run: Known, parts: Parts, request: Request, response: Response, after: After = None, limit: Limit = 100
) -> Listed[FaultReading]:
    """Newest first: failures and losses after which the run went back to a checkpoint."""
    page = await parts.store.runs.faults(run, after, limit)
    return listed(page, FaultReading.model_validate, request, response)


@router.get("/v1/runs/{run}/commands", summary="Commands", **needs("read"))
async def list_commands(
    run: Known, parts: Parts, request: Request, response: Response, after: After = None, limit: Limit = 100
) -> Listed[CommandReading]:
    """Newest first: commands that were given over REST."""
    page = await parts.store.commands.list(run, after, limit)
    return listed(page, CommandReading.model_validate, request, response)


@router.get("/v1/runs/{run}/commands/{command}", summary="One command", **needs("read"))
async def read_command(run: Known, command: CommandId, parts: Parts) -> CommandReading:
    """A command and its result."""
    stored = await parts.store.commands.get(command)
    if stored is None or stored.run != run:
        raise NotFound(f"run {run!r} has no command {command!r}; expected one of GET /v1/runs/{run}/commands")
    return CommandReading.model_validate(stored)


@router.get("/v1/audit", summary="Who changed what, and who was denied", tags=["audit"], **needs("read"))
async def list_audit(
    parts: Parts, request: Request, response: Response, run: RunFilter = None, after: After = None, limit: Limit = 100
) -> Listed[AuditReading]:
    """Newest first."""
    page = await parts.store.audit.list(after, limit, run)
    return listed(page, AuditReading.model_validate, request, response)


def _step(after: str | None) -> int:
    if after is None:
        return 0
    if not (after.isascii() and after.isdigit()):
        raise BadRequest(f"after is {after!r}; expected next of the page before")
    return int(after)


def _point(row: StepPoint) -> dict[str, Any]:
    """The fields of a StepsPoint: the mean loss per sample takes the place of the sum."""
    loss = row.loss / row.samples if row.loss is not None and row.samples and math.isfinite(row.loss) else None
    return row._asdict() | {"loss": loss}

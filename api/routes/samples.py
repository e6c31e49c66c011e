"""Events over HTTP, from devices without a Kafka client."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from api.models.history import WrittenEvents
from api.parts import ApiParts, Parts
from api.routes.common import IdempotencyKey
from api.runs.followed import FollowedRun
from infra.base.config import NAME_PATTERN
from infra.web.errors import Unprocessable
from infra.web.events import describe_body, read_body
from infra.web.problems import answer_of
from infra.web.rules import Acting, needs

RunOfSamples = Annotated[
    str | None, Query(pattern=NAME_PATTERN, max_length=64, description="name of the run; not needed where there is one")
]
EVENT = {"event_time": 1763251200.0, "label": 1, "fields": {"user": "u-17", "item": "i-4711"}}
rule = needs("ingest")
router = APIRouter(tags=["samples"])


@router.post(
    "/v1/samples",
    summary="Hand in events",
    response_model=WrittenEvents,
    openapi_extra={**rule["openapi_extra"], "requestBody": describe_body(EVENT)},
)
async def write_samples(
    request: Request, parts: Parts, actor: Acting, run: RunOfSamples = None, idempotency_key: IdempotencyKey = None
) -> Response:
    """Takes one event, a list, one event per line, or a packed record; answers when the accepted events are durable.

    Events that do not fit the run's schema are reported one by one; if none fits, the request fails. A request that is
    repeated with the same Idempotency-Key within an hour gets the same answer, and its events are written once.
    """
    body = await read_body(request, "events")
    written = await parts.samples.write(_run(parts, run).place, body, actor.name, idempotency_key)
    if not written.accepted:
        errors = [event.model_dump() for event in written.rejects]
        return answer_of(Unprocessable("no event fits the schema of the run; nothing was written"), {"errors": errors})
    return JSONResponse(WrittenEvents(accepted=written.accepted, rejected=written.rejects).model_dump())


def _run(parts: ApiParts, name: str | None) -> FollowedRun:
    """The run that is meant; raises NotFound, or Unprocessable if that is ambiguous."""
    if name is None and len(parts.runs.names) != 1:
        raise Unprocessable(f"{len(parts.runs.names)} runs are here; expected the name of one; add ?run=NAME")
    return parts.runs.get(name or parts.runs.names[0])

"""Routes that monitor a process; whether it can do its own work is the answer of its own ``/readyz``."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from infra.base.telemetry import code_version
from infra.web.answers import Answer
from infra.web.app import HasWebParts, parts_of
from infra.web.errors import DatabaseAway
from infra.web.parts import WebParts
from infra.web.rules import OPEN, needs

AnyParts = Annotated[HasWebParts, Depends(parts_of)]
router = APIRouter(tags=["health"])


class Health(Answer):
    """The answer to a health check."""

    status: Literal["ok"] = "ok"
    version: str


@router.get("/healthz", summary="Whether the process is up", **OPEN)
async def healthz() -> Health:
    """Answers as long as the process serves requests."""
    return Health(version=code_version())


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus's text"}},
    **needs("read"),
)
def metrics(parts: AnyParts) -> Response:
    """Metrics of the process that answers."""
    return Response(generate_latest(parts.web.meter.registry), media_type=CONTENT_TYPE_LATEST)


async def has_database(web: WebParts) -> bool:
    """Whether the database answers now."""
    try:
        await web.store.check()
    except DatabaseAway:
        return False
    return True

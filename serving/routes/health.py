"""Whether the process works, and what it measures."""

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from api.access.rules import OPEN, needs
from api.errors import DatabaseAway
from api.models.history import Health
from infra.base.telemetry import code_version
from serving.models import ServingReadiness
from serving.parts import Parts

router = APIRouter(tags=["health"])


@router.get("/healthz", summary="Whether the server is up", **OPEN)
async def healthz() -> Health:
    """Answers as long as the process serves requests."""
    return Health(version=code_version())


@router.get(
    "/readyz",
    summary="Whether predictions are answered",
    response_model=ServingReadiness,
    responses={503: {"model": ServingReadiness, "description": "No version of the model has been loaded yet"}},
    **OPEN,
)
async def readyz(parts: Parts) -> Response:
    """503 before the first version; a database that is away is told, and tokens seen before stay valid."""
    try:
        await parts.store.check()
        has_database = True
    except DatabaseAway:
        has_database = False
    is_serving = parts.copies.served is not None
    failure = parts.follower.state.failure
    told = ServingReadiness(is_serving=is_serving, database=has_database, failure=failure)
    return JSONResponse(told.model_dump(), 200 if is_serving else 503)


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus's text"}},
    **needs("read"),
)
def metrics(parts: Parts) -> Response:
    """Metrics of the process that answers."""
    return Response(generate_latest(parts.meter.registry), media_type=CONTENT_TYPE_LATEST)

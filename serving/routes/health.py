"""Whether predictions are available."""

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from infra.web.health import has_database
from infra.web.rules import OPEN
from serving.models import ServingReadiness
from serving.parts import Parts

router = APIRouter(tags=["health"])


@router.get(
    "/readyz",
    summary="Whether predictions are answered",
    response_model=ServingReadiness,
    responses={503: {"model": ServingReadiness, "description": "No snapshot has been loaded yet"}},
    **OPEN,
)
async def readyz(parts: Parts) -> Response:
    """503 before the first snapshot. If the database is unavailable, that is reported, and known tokens stay valid."""
    readiness = ServingReadiness(
        is_serving=parts.copies.served is not None,
        database=await has_database(parts.web),
        failure=parts.follower.state.failure,
    )
    return JSONResponse(readiness.model_dump(), 200 if readiness.is_serving else 503)

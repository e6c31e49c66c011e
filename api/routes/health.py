"""Whether the control plane is fully functional, and where the metrics of all runs are."""

from urllib.parse import urlsplit

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from api.models.history import MetricsTarget, Readiness
from api.parts import Parts
from infra.web.health import has_database
from infra.web.rules import OPEN, needs

router = APIRouter(tags=["health"])


@router.get(
    "/readyz",
    summary="Whether the API can do everything",
    response_model=Readiness,
    responses={503: {"model": Readiness, "description": "The database cannot be reached; live reads go on"}},
    **OPEN,
)
async def readyz(parts: Parts) -> Response:
    """503 while the database is unavailable: commands and history have to wait, live reads do not."""
    readiness = Readiness(database=await has_database(parts.web), runs=len(parts.runs.names))
    return JSONResponse(readiness.model_dump(), 200 if readiness.database else 503)


@router.get("/v1/targets", summary="Where Prometheus finds the processes of all runs", **needs("read"))
async def targets(parts: Parts, request: Request) -> list[MetricsTarget]:
    """HTTP service discovery: set ``http_sd_configs`` to this address.

    A process that listens on every interface is named by the host that the request was sent to.
    """
    return [
        MetricsTarget(
            targets=[_target(address, request)],
            labels={"run": name, "process": process, "__metrics_path__": urlsplit(address).path or "/metrics"},
        )
        for name in parts.runs.names
        for process, address in parts.runs.get(name).place.metrics().items()
    ]


def _target(address: str, request: Request) -> str:
    parsed = urlsplit(address)
    is_anywhere = parsed.hostname in ("0.0.0.0", "::")
    return f"{_host(request)}:{parsed.port}" if is_anywhere else parsed.netloc


def _host(request: Request) -> str:
    host = request.url.hostname or "127.0.0.1"
    return f"[{host}]" if ":" in host else host

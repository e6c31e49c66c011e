"""Whether the process works, and what it measures."""

from urllib.parse import urlsplit

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from api.access.rules import OPEN, needs
from api.errors import DatabaseAway
from api.models.history import Health, MetricsTarget, Readiness
from api.parts import Parts
from infra.base.telemetry import code_version

router = APIRouter(tags=["health"])


@router.get("/healthz", summary="Whether the API is up", **OPEN)
async def healthz() -> Health:
    """Answers as long as the process serves requests."""
    return Health(version=code_version())


@router.get(
    "/readyz",
    summary="Whether the API can do everything",
    response_model=Readiness,
    responses={503: {"model": Readiness, "description": "The database cannot be reached; live reads go on"}},
    **OPEN,
)
async def readyz(parts: Parts) -> Response:
    """503 while the database is away: commands and history have to wait, live reads do not."""
    try:
        await parts.store.check()
        has_database = True
    except DatabaseAway:
        has_database = False
    told = Readiness(database=has_database, runs=len(parts.runs.names))
    return JSONResponse(told.model_dump(), 200 if has_database else 503)


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus's text"}},
    **needs("read"),
)
def metrics(parts: Parts) -> Response:
    """Metrics of this process; those of the others are where GET /v1/targets says."""
    return Response(generate_latest(parts.meter.registry), media_type=CONTENT_TYPE_LATEST)


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

"""The HTTP application: its routes, and what stands in front of them, which is the control plane's."""

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp

from api.access.limits import BodyLimit, ConcurrencyLimit, RateLimit
from api.access.measuring import MeasuredRequests
from api.access.rules import Guard, needs
from api.document import describe_routes
from api.pages import add_pages
from api.problems import add_problems
from infra.base.telemetry import code_version
from ps.checkpoints.manifest import CheckpointManifest
from serving.labels.quality import ServedQuality
from serving.labels.routes import quality_router
from serving.parts import ServingParts
from serving.routes import health, predict, snapshots

STREAM_PATHS = ("/events",)
"""there are none"""
ROUTERS: tuple[APIRouter, ...] = (health.router, predict.router, snapshots.router)


def create_app(parts: ServingParts | None = None) -> FastAPI:
    """A new application without global state; without parts it can only be described."""
    app = FastAPI(
        title="Freshet serving",
        version=code_version(),
        description="Predictions of the newest good model of a run.",
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.parts = parts
    add_problems(app)
    for router in (*ROUTERS, _quality(parts)):
        app.router.routes.extend(router.routes)  # as they are: the guard reads their rules
    app.openapi = lambda: describe_routes(app)  # type: ignore[method-assign]
    app.add_api_route(
        "/v1/openapi.json", lambda: app.openapi(), methods=["GET"], summary="This description", **needs("read")
    )
    add_pages(app)
    return app


def _quality(parts: ServingParts | None) -> APIRouter:
    def served() -> ServedQuality | None:
        return None if parts is None or parts.labels is None else parts.labels.quality()

    def newest() -> CheckpointManifest | None:
        manifests = () if parts is None else parts.follower.state.manifests
        return manifests[-1] if manifests else None

    return quality_router(served, newest)


def guarded(app: FastAPI, parts: ServingParts) -> ASGIApp:
    """The application as it is served. Outermost first: counted, how many, how often, who, how much."""
    limits = parts.limits
    inner: ASGIApp = BodyLimit(app, limits.body_bytes, limits.receive_seconds)
    inner = Guard(inner, parts.tokens, parts.audit, parts.token_command)
    inner = RateLimit(inner, parts.config.requests_per_second, parts.tokens.known)
    inner = ConcurrencyLimit(inner, limits.concurrency, STREAM_PATHS)
    return MeasuredRequests(inner, app.routes, parts.meter, STREAM_PATHS)

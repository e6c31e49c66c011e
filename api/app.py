"""The HTTP application: its routes, and what stands in front of them."""

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp

from api.access.limits import BodyLimit, ConcurrencyLimit, RateLimit
from api.access.measuring import MeasuredRequests
from api.access.rules import Guard, needs
from api.document import describe_routes
from api.pages import add_pages
from api.parts import ApiParts
from api.problems import add_problems
from api.quick import QuickReads
from api.routes import alpha, commands, events, health, history, runs, samples, settings, workers
from infra.base.telemetry import code_version

STREAM_PATHS = ("/events",)
ROUTERS: tuple[APIRouter, ...] = (
    health.router,
    runs.router,
    alpha.router,
    workers.router,
    settings.router,
    commands.router,
    history.router,
    events.router,
    samples.router,
)


def create_app(parts: ApiParts | None = None) -> FastAPI:
    """A new application without global state; without parts it can only be described."""
    app = FastAPI(
        title="Freshet",
        version=code_version(),
        description="Control plane of continuous click-model training.",
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.parts = parts
    add_problems(app)
    for router in ROUTERS:
        app.router.routes.extend(router.routes)  # as they are: the guard reads their rules
    app.openapi = lambda: describe_routes(app)  # type: ignore[method-assign]
    app.add_api_route(
        "/v1/openapi.json", lambda: app.openapi(), methods=["GET"], summary="This description", **needs("read")
    )
    add_pages(app)
    return app


def guarded(app: FastAPI, parts: ApiParts) -> ASGIApp:
    """The application as it is served. Outermost first: counted, how many, how often, who, how much."""
    config = parts.config
    inner: ASGIApp = BodyLimit(QuickReads(app, parts), config.body_bytes, config.receive_seconds)
    inner = Guard(inner, parts.tokens, parts.audit, parts.token_command)
    inner = RateLimit(inner, config.requests_per_second, parts.tokens.known)
    inner = ConcurrencyLimit(inner, config.concurrency, STREAM_PATHS)
    return MeasuredRequests(inner, app.routes, parts.meter, STREAM_PATHS)

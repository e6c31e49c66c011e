"""The control plane as an HTTP application: its routes, and the guard in front of them."""

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp

from api.parts import ApiParts
from api.quick import QuickReads
from api.routes import (
    alpha,
    commands,
    dashboard,
    events,
    health,
    history,
    quality,
    readings,
    runs,
    samples,
    serving,
    session,
    settings,
    workers,
)
from infra.web.app import create_web_app, guarded
from infra.web.health import router as web_health

STREAM_PATHS = ("/events",)
ROUTERS: tuple[APIRouter, ...] = (
    web_health,
    health.router,
    runs.router,
    alpha.router,
    workers.router,
    settings.router,
    commands.router,
    history.router,
    events.router,
    samples.router,
    readings.router,
    quality.router,
    serving.router,
    session.router,
    dashboard.router,
)


def create_app(parts: ApiParts | None = None) -> FastAPI:
    """Creates an application without global state; without parts it can only be described, not called."""
    return create_web_app("Freshet", "Control plane of continuous click-model training.", ROUTERS, parts)


def served_app(parts: ApiParts) -> ASGIApp:
    """The application as it is served, behind the guard; ``QuickReads`` answers some reads before they reach it."""
    app = create_app(parts)
    return guarded(QuickReads(app, parts), app.routes, parts.web, STREAM_PATHS)

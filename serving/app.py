"""Predictions as an HTTP application: its routes, and the guard in front of them."""

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp

from infra.web.app import create_web_app, guarded
from infra.web.health import router as web_health
from ps.checkpoints.manifest import CheckpointManifest
from serving.labels.quality import ServedQuality
from serving.labels.routes import quality_router
from serving.parts import ServingParts
from serving.routes import health, predict, snapshots

ROUTERS: tuple[APIRouter, ...] = (web_health, health.router, predict.router, snapshots.router)


def create_app(parts: ServingParts | None = None) -> FastAPI:
    """Creates an application without global state; without parts it can only be described, not called."""
    routers = (*ROUTERS, _quality(parts))
    return create_web_app("Freshet serving", "Predictions of the newest good model of a run.", routers, parts)


def served_app(parts: ServingParts) -> ASGIApp:
    """The application as it is served, behind the guard."""
    app = create_app(parts)
    return guarded(app, app.routes, parts.web)


def _quality(parts: ServingParts | None) -> APIRouter:
    def served() -> ServedQuality | None:
        return None if parts is None or parts.labels is None else parts.labels.quality()

    def newest() -> CheckpointManifest | None:
        manifests = () if parts is None else parts.follower.state.manifests
        return manifests[-1] if manifests else None

    return quality_router(served, newest)

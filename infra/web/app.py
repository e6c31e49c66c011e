"""Assembles an application from routes, with the parts that all of ours share and the layers in front of it."""

from collections.abc import Sequence
from typing import Any, Protocol

from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from infra.base.telemetry import code_version
from infra.web.document import describe_routes
from infra.web.limits import BodyLimit, ConcurrencyLimit, RateLimit
from infra.web.measuring import MeasuredRequests
from infra.web.pages import add_pages
from infra.web.parts import WebParts
from infra.web.problems import add_problems
from infra.web.rules import Guard, needs


class HasWebParts(Protocol):
    """The parts that the routes of an application use."""

    @property
    def web(self) -> WebParts:
        """The parts that the shared routes use."""
        ...


def create_web_app(title: str, description: str, routers: Sequence[APIRouter], parts: HasWebParts | None) -> FastAPI:
    """Returns a new application without global state; without parts it can only be described."""
    app = FastAPI(
        title=title, version=code_version(), description=description, openapi_url=None, redirect_slashes=False
    )
    app.state.parts = parts
    add_problems(app)
    for router in routers:
        app.router.routes.extend(router.routes)  # unchanged: the guard reads their rules
    app.openapi = lambda: describe_routes(app)  # type: ignore[method-assign]
    app.add_api_route(
        "/v1/openapi.json", lambda: app.openapi(), methods=["GET"], summary="This description", **needs("read")
    )
    add_pages(app)
    return app


async def parts_of(request: Request) -> Any:
    """Returns the parts of the application; routes declare their type.

    Like every dependency of a route it is a coroutine: FastAPI runs any other in a thread, for each request anew, which
    costs more than most of our answers.
    """
    return request.app.state.parts


def guarded(app: ASGIApp, routes: Sequence[BaseRoute], web: WebParts, stream_paths: Sequence[str] = ()) -> ASGIApp:
    """Returns the application with its layers. Outermost first: metrics, concurrency, rate, token, body size.

    stream_paths: endings of the paths of event streams.
    """
    config = web.config
    inner: ASGIApp = BodyLimit(app, config.body_bytes, config.receive_seconds)
    inner = Guard(inner, web.tokens, web.audit, web.token_command)
    inner = RateLimit(inner, config.requests_per_second, web.tokens.known)
    inner = ConcurrencyLimit(inner, config.concurrency, stream_paths)
    return MeasuredRequests(inner, routes, web.meter, stream_paths)

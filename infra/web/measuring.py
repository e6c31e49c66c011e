"""Metrics of every request: method, path as in OpenAPI, status, duration; nothing that a client could invent."""

from collections.abc import Sequence
from re import Pattern
from time import perf_counter

from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from infra.base.telemetry import Meter

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
MATCHED = "matched"
"""Key in a request's scope; its value is the matched route, or None."""
NO_ROUTE = "none"
OTHER_METHOD = "other"
NO_ANSWER = "none"
"""This and the two labels above stand for anything a client could invent, so that the number of labels is bounded."""


class MeasuredRequests:
    """Finds the route of each request, for the layers behind it, and counts the request."""

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute], meter: Meter, stream_paths: Sequence[str]) -> None:
        """stream_paths: endings of the paths of event streams, whose duration has no meaning."""
        self._app = app
        self._meter = meter
        self._stream_paths = tuple(stream_paths)
        self._routes = [_Target(route) for route in routes]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = perf_counter()
        status = NO_ANSWER
        route = self._route(scope)
        scope[MATCHED] = route

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            method = scope["method"] if scope["method"] in METHODS else OTHER_METHOD
            path = str(getattr(route, "path", NO_ROUTE))
            self._meter.count("api_requests", method=method, route=path, status=status)
            if not path.endswith(self._stream_paths):
                self._meter.observe("api_request", perf_counter() - began, method=method, route=path)

    def _route(self, scope: Scope) -> BaseRoute | None:
        method = scope["method"]
        path = scope["path"]
        return next((target.route for target in self._routes if target.is_for(method, path)), None)


class _Target:
    """The parts of a route that are needed to find it."""

    def __init__(self, route: BaseRoute) -> None:
        self.route = route
        self._pattern: Pattern[str] = route.path_regex  # type: ignore[attr-defined]
        self._methods: set[str] = route.methods  # type: ignore[attr-defined]

    def is_for(self, method: str, path: str) -> bool:
        return method in self._methods and self._pattern.match(path) is not None

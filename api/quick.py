"""Answers the most frequent read, the status of a run, without going through the framework.

The answer is the same as that of the route (``api.routes.runs.read_run``) and costs a fraction of it: a dashboard that
polls many times a second must not take processor time from training. Every other request is passed on to the
application.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from api.parts import ApiParts
from api.routes.runs import read_run, status_of
from infra.web.measuring import MATCHED

PREFIX = "/v1/runs/"


class QuickReads:
    """A layer between the guard and the application."""

    def __init__(self, app: ASGIApp, parts: ApiParts) -> None:
        self._app = app
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and getattr(scope[MATCHED], "endpoint", None) is read_run:
            name = scope["path"].removeprefix(PREFIX)
            if name in self._parts.runs:
                await _send(send, *status_of(self._parts, name))
                return
        await self._app(scope, receive, send)


async def _send(send: Send, body: bytes, etag: str) -> None:
    headers = [
        (b"content-length", b"%d" % len(body)),
        (b"content-type", b"application/json"),
        (b"etag", etag.encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})

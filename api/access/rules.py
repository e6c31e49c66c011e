"""Who may use a route: declared with the route, checked before its request is read, and shown in OpenAPI.

    router.get("/v1/runs", **needs("read"))     a valid token with that scope
    router.get("/healthz", **OPEN)              anyone

A route without either answers nobody (``Guard``), and a test finds it.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import structlog
from fastapi import Depends, Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from api.access.limits import bearer
from api.access.measuring import MATCHED
from api.access.tokens import TokenCache
from api.errors import ApiError, DatabaseAway, Forbidden, Unauthorized
from api.problems import send_problem
from api.store.rows import NewAudit, Scope, StoredToken
from api.store.store import SqlStore

SCOPE, OPEN_TO_ALL = "x-scope", "none"
SCHEME = "bearer"
WRITES = ("POST", "PUT", "PATCH", "DELETE")
NOT_AUDITED = ("/v1/samples", "/v1/predict")
"""where they succeed: events are on record themselves, and predictions change nothing"""


def needs(scope: Scope) -> dict[str, Any]:
    """Of a route: only for tokens with this scope."""
    return {"openapi_extra": {SCOPE: scope, "security": [{SCHEME: []}]}}


OPEN: dict[str, Any] = {"openapi_extra": {SCOPE: OPEN_TO_ALL, "security": []}}
"""of a route: for anyone"""


@dataclass(frozen=True)
class Actor:
    """Who makes a request."""

    token: str
    """its id"""
    name: str


def actor_of(request: Request) -> Actor:
    """Who makes a request; the guard has let it pass."""
    actor: Actor = request.scope["actor"]
    return actor


Acting = Annotated[Actor, Depends(actor_of)]


def rule_of(route: BaseRoute) -> str | None:
    """The scope that a route needs; None if nobody has declared one."""
    return (getattr(route, "openapi_extra", None) or {}).get(SCOPE)


class Guard:
    """Refuses requests without the right token before they are read, and audits those that change something."""

    def __init__(self, app: ASGIApp, tokens: TokenCache, store: SqlStore) -> None:
        self._app, self._tokens, self._store = app, tokens, store

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        route = scope[MATCHED]
        if scope["method"] in WRITES:
            await self._pass_audited(scope, route, receive, send)
        else:
            await self._pass(scope, route, receive, send)

    async def _pass(self, scope: AsgiScope, route: BaseRoute | None, receive: Receive, send: Send) -> None:
        try:
            await self._admit(scope, route)
        except ApiError as error:
            await send_problem(error, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _pass_audited(self, scope: AsgiScope, route: BaseRoute | None, receive: Receive, send: Send) -> None:
        """Whoever has the whole answer finds it in the audit trail, and has no request under way any more."""
        status, is_audited = 500, False

        async def noted(message: Message) -> None:
            nonlocal status, is_audited
            if message["type"] == "http.response.start":
                status = message["status"]
            elif not message.get("more_body", False):
                is_audited = True
                await self._audit(scope, route, status)
            await send(message)

        try:
            await self._pass(scope, route, receive, noted)
        finally:
            if not is_audited:
                await self._audit(scope, route, status)

    async def _admit(self, scope: AsgiScope, route: BaseRoute | None) -> None:
        """Raises Unauthorized or Forbidden; a path that does not exist is told to those with a token alone."""
        needed = rule_of(route) if route is not None else None
        if needed == OPEN_TO_ALL:
            return
        secret = bearer(scope)
        if secret is None:
            raise Unauthorized("there is no token; expected the header 'Authorization: Bearer TOKEN'; add it")
        token: StoredToken = await self._tokens.check(secret)
        scope["actor"] = Actor(token.id, token.name)
        if route is not None and needed not in token.scopes:
            raise Forbidden(f"the token has the scopes {', '.join(token.scopes)}; expected {needed}; use another token")

    async def _audit(self, scope: AsgiScope, route: BaseRoute | None, status: int) -> None:
        path = getattr(route, "path", None) or scope["path"][:200]
        if path in NOT_AUDITED and status < 400:
            return
        actor: Actor | None = scope.get("actor")
        address = str((scope.get("client") or ("unknown",))[0])
        entry = NewAudit(
            actor=actor.name if actor is not None else "",
            action=f"{scope['method']} {path}".encode("utf-8", "replace").decode().replace("\0", ""),
            status=status,
            token=actor.token if actor is not None else None,
            run=scope.get("path_params", {}).get("run"),
            detail={"address": address, **scope.get("audited", {})},
        )
        try:
            await self._store.audit.add(entry)
        except DatabaseAway as error:
            structlog.get_logger().warning("not audited", reason=str(error), actor=entry.actor, action=entry.action)

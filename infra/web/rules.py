"""Who may use a route: declared with it, checked before its request is read, shown in OpenAPI; tokens are elsewhere.

    router.get("/v1/runs", **needs("read"))     a valid token with that scope
    router.get("/healthz", **OPEN)              anyone

A route that declares neither answers nobody (``Guard``), and a test finds it.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from infra.web.auditing import AuditQueue
from infra.web.client import PAGE_HEADER, address, bearer, header, is_loopback, session
from infra.web.errors import Forbidden, HttpError, Unauthorized
from infra.web.measuring import MATCHED
from infra.web.problems import send_problem
from infra.web.store.rows import NewAudit, Scope, StoredToken
from infra.web.tokens import TokenCache

SCOPE = "x-scope"
OPEN_TO_ALL = "none"
SCHEME = "bearer"
READ: Scope = "read"
WRITES = ("POST", "PUT", "PATCH", "DELETE")
REFUSED = 400
"""Answers with this status or a higher one are refusals."""
NOT_AUDITED = ("/v1/samples", "/v1/predict", "/v1/runs/{run}/served/predict")
"""Paths that are not audited when they succeed: events are recorded anyway, and predictions change nothing."""


def needs(scope: Scope) -> dict[str, Any]:
    """Declares that a route is only for tokens with this scope."""
    return {"openapi_extra": {SCOPE: scope, "security": [{SCHEME: []}]}}


OPEN: dict[str, Any] = {"openapi_extra": {SCOPE: OPEN_TO_ALL, "security": []}}
"""Declares that a route is open to anyone."""


@dataclass(frozen=True)
class Actor:
    """Who makes a request."""

    token: str
    """Id of its token."""
    name: str


async def actor_of(request: Request) -> Actor:
    """Returns who makes a request; the guard has already admitted it."""
    actor: Actor = request.scope["actor"]
    return actor


Acting = Annotated[Actor, Depends(actor_of)]


def rule_of(route: BaseRoute) -> str | None:
    """Returns the scope that a route needs; None if none is declared."""
    return (getattr(route, "openapi_extra", None) or {}).get(SCOPE)


class Guard:
    """Refuses requests without the right token before they are read, and audits those that change something."""

    def __init__(self, app: ASGIApp, tokens: TokenCache, audit: AuditQueue, token_command: str) -> None:
        """token_command: the command that makes a token for this server, without the scope."""
        self._app = app
        self._tokens = tokens
        self._audit = audit
        self._token_command = token_command

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
        except HttpError as error:
            await send_problem(error, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _pass_audited(self, scope: AsgiScope, route: BaseRoute | None, receive: Receive, send: Send) -> None:
        """Handles a request that may change something.

        A successful change is audited before its answer is sent; a refused request is audited afterwards.
        """
        status = 500

        async def recorded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if status < REFUSED and path_of(scope, route) not in NOT_AUDITED:
                    await self._audit.record(entry_of(scope, route, status))
            await send(message)

        try:
            await self._pass(scope, route, receive, recorded)
        finally:
            if status >= REFUSED:
                self._audit.note_refusal(entry_of(scope, route, status))

    async def _admit(self, scope: AsgiScope, route: BaseRoute | None) -> None:
        """Raises Unauthorized or Forbidden. Only clients with a token are told that a path does not exist."""
        needed = rule_of(route) if route is not None else None
        if needed == OPEN_TO_ALL:
            return
        try:
            token: StoredToken = await self._checked(scope)
        except Unauthorized as error:
            raise Unauthorized(f"{error}; {self._way_to_a_token(scope, needed or READ)}") from error
        scope["actor"] = Actor(token.id, token.name)
        if route is not None and needed not in token.scopes:
            raise Forbidden(f"the token has the scopes {', '.join(token.scopes)}; expected {needed}; use another token")

    async def _checked(self, scope: AsgiScope) -> StoredToken:
        if (secret := bearer(scope)) is not None:
            return await self._tokens.check(secret)
        if (secret := session(scope)) is None:
            raise Unauthorized("there is no token; expected the header 'Authorization: Bearer TOKEN'")
        token = await self._tokens.check(secret)
        if scope["method"] in WRITES and header(scope, PAGE_HEADER) is None:
            raise Forbidden(
                f"a change with a session cookie, but without the header {PAGE_HEADER.decode()}; expected both, as our "
                "page sends them; use a token in other programs"
            )
        return token

    def _way_to_a_token(self, scope: AsgiScope, needed: str) -> str:
        """Returns how to get a token. Only clients on this machine are told the whole command, which names a folder."""
        if is_loopback(address(scope)):
            return f"make one with '{self._token_command} --scope {needed}'"
        return f"make one on the machine of this server with 'freshet token create --name NAME --scope {needed}'"


def path_of(scope: AsgiScope, route: BaseRoute | None) -> str:
    """Returns the path as the route declares it; the requested path if there is no route."""
    return getattr(route, "path", None) or str(scope["path"])[:200]


def entry_of(scope: AsgiScope, route: BaseRoute | None, status: int) -> NewAudit:
    """Returns the audit entry of a request: who asked for what, and the answer's status."""
    actor: Actor | None = scope.get("actor")
    return NewAudit(
        actor=actor.name if actor is not None else "",
        action=f"{scope['method']} {path_of(scope, route)}".encode("utf-8", "replace").decode().replace("\0", ""),
        status=status,
        token=actor.token if actor is not None else None,
        run=scope.get("path_params", {}).get("run"),
        detail={"address": address(scope)},
    )

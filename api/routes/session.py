"""Sessions of the dashboard: a sign-in link or a token is exchanged for a cookie that scripts cannot read."""

from time import time
from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import StringConstraints

from api.parts import Parts
from infra.web.answers import Answer, Body
from infra.web.client import cookie_name, secret_of, session
from infra.web.errors import Unauthorized
from infra.web.rules import OPEN, Acting, Actor, needs
from infra.web.store.rows import StoredToken
from infra.web.store.tokens import LINK_PREFIX, SESSION_PREFIX, SESSION_SECONDS

router = APIRouter(prefix="/v1/session", tags=["session"])


class SignIn(Body):
    """The secret of a token, or of a sign-in link."""

    secret: Annotated[str, StringConstraints(min_length=1, max_length=200)]


class SessionReading(Answer):
    """Who is signed in, and what they may do."""

    name: str
    scopes: list[str]
    expires_at: float | None
    """When the session ends, in seconds since 1970; null: with its token."""


@router.post("", summary="Sign in", **OPEN)
async def sign_in(body: SignIn, request: Request, response: Response, parts: Parts) -> SessionReading:
    """Answers with a session cookie. A link can be used once; a token stays valid, and the cookie holds its secret."""
    token, secret = await _exchanged(parts, body.secret)
    request.scope["actor"] = Actor(token.id, token.name)  # for the audit trail
    lasts_seconds = SESSION_SECONDS if token.expires_at is None else min(SESSION_SECONDS, token.expires_at - time())
    response.set_cookie(
        cookie_name(request.scope),
        secret,
        max_age=int(lasts_seconds),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return _reading(token)


@router.get("", summary="Who is signed in", **needs("read"))
async def read_session(request: Request, parts: Parts) -> SessionReading:
    """The name and the scopes of the token that the request was made with."""
    return _reading(await parts.web.tokens.check(secret_of(request.scope) or ""))


@router.delete("", status_code=204, summary="Sign out", response_class=Response, **needs("read"))
async def sign_out(request: Request, parts: Parts, actor: Acting) -> Response:
    """Removes the cookie; a session that began with a link ends for good."""
    if (session(request.scope) or "").startswith(SESSION_PREFIX):
        await parts.store.tokens.revoke(actor.token)
    response = Response(status_code=204)
    response.delete_cookie(cookie_name(request.scope), httponly=True, samesite="strict")
    return response


async def _exchanged(parts: Parts, secret: str) -> tuple[StoredToken, str]:
    """The token and the secret of the session; raises Unauthorized."""
    if not secret.startswith(LINK_PREFIX):
        return await parts.web.tokens.check(secret), secret
    begun = await parts.store.tokens.begin_session(secret)
    if begun is None:
        raise Unauthorized(
            "the sign-in link was used before or is too old; expected a new one; make it with 'freshet dashboard'"
        )
    return begun


def _reading(token: StoredToken) -> SessionReading:
    return SessionReading(name=token.name, scopes=list(token.scopes), expires_at=token.expires_at)

"""Finds out who sends a request, from its head and its connection; whether it is allowed is decided elsewhere."""

import ipaddress

from starlette.requests import cookie_parser
from starlette.types import Scope

PAGE_HEADER = b"x-freshet-page"
"""Header that our page sends with every change; a foreign page cannot, because browsers would ask us first."""

SECRET = "secret"
"""Key in a request's scope; its value is the secret of the client, or None."""


def address(scope: Scope) -> str:
    """Returns the address of the client."""
    return str((scope.get("client") or ("unknown",))[0])


def header(scope: Scope, name: bytes) -> str | None:
    """Returns the first header with this name, which must be in lower case."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)


def bearer(scope: Scope) -> str | None:
    """Returns the secret of the token that a request carries; None if it carries none."""
    kind, _, secret = (header(scope, b"authorization") or "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" and secret.strip() else None


def cookie_name(scope: Scope) -> str:
    """Returns the name of the session cookie. It has the port in it: a host's cookies are shared by all its ports."""
    server = scope.get("server") or ("", 0)
    return f"freshet-{server[1]}"


def session(scope: Scope) -> str | None:
    """Returns the secret in the session cookie of a browser; None if there is none."""
    return cookie_parser(header(scope, b"cookie") or "").get(cookie_name(scope)) or None


def secret_of(scope: Scope) -> str | None:
    """Returns the secret that identifies the client: that of its header, otherwise that of its session cookie.

    It is read once for each request: the limits and the routes ask for it.
    """
    if SECRET not in scope:
        scope[SECRET] = bearer(scope) or session(scope)
    found: str | None = scope[SECRET]
    return found


def is_loopback(host: str) -> bool:
    """Whether an address can only belong to, or be reached from, this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

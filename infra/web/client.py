"""Who sends a request, as its head and its connection tell; whether it may is decided elsewhere."""

import ipaddress

from starlette.types import Scope


def address(scope: Scope) -> str:
    """Of the client."""
    return str((scope.get("client") or ("unknown",))[0])


def header(scope: Scope, name: bytes) -> str | None:
    """The first header of this name, in lower case."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)


def bearer(scope: Scope) -> str | None:
    """The token that a request carries."""
    kind, _, secret = (header(scope, b"authorization") or "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" and secret.strip() else None


def is_loopback(host: str) -> bool:
    """Whether only this machine can have, or reach, an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

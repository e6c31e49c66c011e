"""Finds out who sends a request, from its head and its connection; whether it is allowed is decided elsewhere."""

import ipaddress

from starlette.types import Scope


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


def is_loopback(host: str) -> bool:
    """Whether an address can only belong to, or be reached from, this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

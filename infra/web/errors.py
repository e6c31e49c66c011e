"""Errors with which a request may end, each with its HTTP status; errors outside of requests are elsewhere.

FreshetError
└── HttpError           500   base; the answer is problem+json (RFC 9457) with the error's text as its detail
    ├── BadRequest      400   a request that cannot be read
    │   └── BadPageToken      a page was asked for with a token that no page gave
    ├── Unauthorized    401   no token, or one that is invalid, expired or revoked
    ├── Forbidden       403   a token without the scope that the route needs
    ├── NotFound        404   no such run, worker, command
    ├── TooSlow         408   a request that did not arrive in time
    ├── Conflict        409   the request conflicts with the current state
    ├── CursorOutdated 412    the state has changed after the cursor of If-Match
    ├── TooLarge        413   a request body above the limit
    ├── Unprocessable   422   a value that cannot be used
    │   └── KeyReused         an idempotency key that was used with another request before
    ├── TooMany         429   more requests than the rate limit allows
    ├── HeadTooLarge    431   a request line and headers above the limit
    └── NotAvailable    503   nothing is wrong with the request; try again later
        ├── DatabaseAway      the database cannot be reached, is locked for too long, or has no room left
        └── Overloaded        too many requests at the same time
"""

from typing import ClassVar

from infra.base.errors import FreshetError


class HttpError(FreshetError):
    """Base of the errors with which a request may end."""

    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"
    retry_after_seconds: ClassVar[int | None] = None


class BadRequest(HttpError):
    """The request cannot be read."""

    status = 400
    title = "Bad request"


class BadPageToken(BadRequest):
    """A page was asked for with a token that no page gave."""

    title = "Bad page token"


class Unauthorized(HttpError):
    """There is no token, or it is not valid."""

    status = 401
    title = "Unauthorized"


class Forbidden(HttpError):
    """The token lacks a scope."""

    status = 403
    title = "Forbidden"


class NotFound(HttpError):
    """The requested object does not exist."""

    status = 404
    title = "Not found"


class TooSlow(HttpError):
    """The request did not arrive in time."""

    status = 408
    title = "Request timeout"


class Conflict(HttpError):
    """The request conflicts with the current state."""

    status = 409
    title = "Conflict"


class CursorOutdated(HttpError):
    """The state has changed after the cursor that the request names."""

    status = 412
    title = "Outdated"


class TooLarge(HttpError):
    """The body of the request is above the limit."""

    status = 413
    title = "Content too large"


class Unprocessable(HttpError):
    """A value cannot be used."""

    status = 422
    title = "Invalid request"


class KeyReused(Unprocessable):
    """The idempotency key was used with another request before."""

    title = "Idempotency key reused"


class TooMany(HttpError):
    """The rate limit is exceeded."""

    status = 429
    title = "Too many requests"


class HeadTooLarge(HttpError):
    """The request line and headers are too long."""

    status = 431
    title = "Head too large"


class NotAvailable(HttpError):
    """The request cannot be carried out now, but perhaps later."""

    status = 503
    title = "Unavailable"
    retry_after_seconds = 1


class DatabaseAway(NotAvailable):
    """The database cannot be reached."""

    title = "Database unavailable"


class Overloaded(NotAvailable):
    """Too many requests are being answered at the same time."""

    title = "Too many requests at a time"

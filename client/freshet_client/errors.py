"""Every error that the client raises.

ClientError
├── InvalidInput           an address, a token or rows that cannot be sent; nothing was sent
├── Unreachable            no answer arrived, however often the request was sent
├── UnknownAnswer          something answered that is not Freshet
└── Problem                the server refused; with its problem details
    ├── Unauthorized  401  the token is missing, unknown, revoked or has expired
    ├── Forbidden     403  the token lacks a scope
    ├── NotFound      404
    ├── Conflict      409  the run is in a state in which it cannot do that
    ├── Outdated      412  something changed since the cursor that was given
    ├── TooLarge      413
    ├── Unfitting     422  rows do not fit the schema, or a key was used for other events; see ``errors``
    ├── RateLimited   429  still, after waiting as long as was allowed
    └── Unavailable   503  the same: no snapshot is served yet, or the database is away
"""

from collections.abc import Mapping, Sequence
from typing import Any


class ClientError(Exception):
    """Any error of the client."""


class InvalidInput(ClientError, ValueError):
    """What was given cannot be sent."""


class Unreachable(ClientError):
    """No answer arrived. Events that were sent may or may not be written; send them again with the same key."""


class UnknownAnswer(ClientError):
    """The answer is not one of Freshet's."""


class Problem(ClientError):
    """The server refused a request."""

    def __init__(self, status: int, title: str, detail: str, errors: Sequence[Mapping[str, Any]] = ()) -> None:
        """errors: what is wrong with parts of the request, as ``{"index": 3, "reason": "…"}`` for a row."""
        told = [f"row {error['index']}: {error.get('reason')}" for error in errors if "index" in error]
        more = f" ({'; '.join(told[:5])}{'; …' if len(told) > 5 else ''})" if told else ""
        super().__init__(f"{detail}{more}")
        self.status = status
        self.title = title
        self.detail = detail
        self.errors = tuple(errors)


class Unauthorized(Problem):
    """401: the token is missing, unknown, revoked or has expired."""


class Forbidden(Problem):
    """403: the token lacks a scope."""


class NotFound(Problem):
    """404: there is no such run, worker, command or path."""


class Conflict(Problem):
    """409: the run is in a state in which it cannot do that."""


class Outdated(Problem):
    """412: something changed since the cursor that was given."""


class TooLarge(Problem):
    """413: too many rows or bytes in one request."""


class Unfitting(Problem):
    """422: rows do not fit the schema, or an idempotency key was used for others."""


class RateLimited(Problem):
    """429: too many requests, still, after waiting."""


class Unavailable(Problem):
    """503: nothing can be answered now, still, after waiting."""


BY_STATUS: Mapping[int, type[Problem]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    412: Outdated,
    413: TooLarge,
    422: Unfitting,
    429: RateLimited,
    503: Unavailable,
}

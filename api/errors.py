"""Errors of the control plane, each with the HTTP status it is answered with.

FreshetError
└── ApiError        500   base; the answer is problem+json (RFC 9457) with the error's text as its detail
    └── NotFound    404   what was asked for does not exist
"""

from typing import ClassVar

from infra.errors import FreshetError


class ApiError(FreshetError):
    """Base of what a request can end in on purpose."""

    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"


class NotFound(ApiError):
    """What was asked for does not exist."""

    status = 404
    title = "Not found"

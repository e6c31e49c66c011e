"""Errors of the control plane, each with the HTTP status it is answered with.

FreshetError
└── ApiError        500   base; the answer is problem+json (RFC 9457) with the error's text as its detail
"""

from typing import ClassVar

from infra.errors import FreshetError


class ApiError(FreshetError):
    """Base of the errors with which a request may end."""

    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"

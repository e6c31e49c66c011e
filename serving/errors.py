"""ServingError
└── NothingServed    no snapshot has been loaded yet
"""

from infra.base.errors import FreshetError


class ServingError(FreshetError):
    """Base of the serving process's errors."""


class NothingServed(ServingError):
    """No snapshot has been loaded yet."""

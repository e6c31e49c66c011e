"""ServingError
└── NothingServed    no snapshot has been loaded yet
"""

from infra.base.errors import FreshetError


class ServingError(FreshetError):
    """Base class of errors of the serving process."""


class NothingServed(ServingError):
    """No snapshot has been loaded yet."""

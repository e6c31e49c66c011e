"""ServingError
└── NothingServed    no version of the model has been loaded yet
"""

from infra.base.errors import FreshetError


class ServingError(FreshetError):
    """Base of the serving process's errors."""


class NothingServed(ServingError):
    """No version of the model has been loaded yet."""

"""LabelsDamaged      the saved state of the joiner cannot be read
BadPredictionId    a client's id of a prediction cannot be used
"""

from infra.base.errors import FreshetError


class LabelsDamaged(FreshetError):
    """The saved state of the joiner is not what it wrote."""


class BadPredictionId(FreshetError):
    """A client's id of a prediction cannot be used."""

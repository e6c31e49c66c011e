"""LabelsDamaged      what the joiner of labels has saved cannot be read
BadPredictionId    a client's id of a prediction cannot be used
"""

from infra.base.errors import FreshetError


class LabelsDamaged(FreshetError):
    """What the joiner of labels has saved is not what it wrote."""


class BadPredictionId(FreshetError):
    """A client's id of a prediction cannot be used."""

"""LabelsDamaged    what the joiner of labels has saved cannot be read"""

from infra.errors import FreshetError


class LabelsDamaged(FreshetError):
    """What the joiner of labels has saved is not what it wrote."""

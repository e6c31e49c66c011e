"""Labels as the loss gets them; metrics are about the labels as they are."""

from torch import Tensor


def smoothed(labels: Tensor, share: float) -> Tensor:
    """Labels of 0 and 1 drawn towards 1/2 by a share of ``model.label_smoothing``; one that is not known stays NaN."""
    return labels * (1 - share) + share / 2 if share else labels

"""How a summed gradient changes dense weights, in place: SGD, and Adam with torch's usual settings.

With g the gradient and t the number of updates so far, including this one:

* sgd   w -= rate·g
* adam  m = b1·m + (1-b1)·g; v = b2·v + (1-b2)·g²; w -= rate/(1-b1^t) · m / (√v / √(1-b2^t) + eps)

Arithmetic stays in the weights' floating-point type, as it does if a worker applies the optimizer itself.

Legend: L weights of the range.
"""

from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from infra.base.kernels import kernel

BETA_1 = 0.9
BETA_2 = 0.999
EPS = 1e-8


class AdamScales(NamedTuple):
    """The factors of one update, in the weights' type."""

    beta_1: Any
    rest_1: Any
    beta_2: Any
    rest_2: Any
    rate: Any
    """The learning rate, divided by the bias correction of the mean of gradients."""
    root: Any
    """The divisor of the root of the mean of squares."""
    eps: Any


def adam_scales(rate: float, updates: int, dtype: DTypeLike) -> AdamScales:
    """updates: how many there have been, including this one."""
    factors = (BETA_1, 1 - BETA_1, BETA_2, 1 - BETA_2, rate / (1 - BETA_1**updates), sqrt(1 - BETA_2**updates), EPS)
    return AdamScales(*map(np.dtype(dtype).type, factors))


@kernel
def sgd(weights_L: Any, gradient_L: Any, rate: Any) -> None:
    """Applies SGD; rate: in the weights' type."""
    for i in range(weights_L.shape[0]):
        weights_L[i] -= rate * gradient_L[i]


@kernel
def adam(weights_L: Any, mean_L: Any, square_L: Any, gradient_L: Any, scales: Any) -> None:
    """Applies Adam; mean and square: moving averages of gradients so far."""
    for i in range(weights_L.shape[0]):
        gradient = gradient_L[i]
        mean = scales.beta_1 * mean_L[i] + scales.rest_1 * gradient
        square = scales.beta_2 * square_L[i] + scales.rest_2 * gradient * gradient
        mean_L[i] = mean
        square_L[i] = square
        weights_L[i] -= scales.rate * mean / (np.sqrt(square) / scales.root + scales.eps)


@kernel
def add_to(total_L: Any, part_L: Any) -> None:
    """Adds a part to the total, in place."""
    for i in range(total_L.shape[0]):
        total_L[i] += part_L[i]


def sgd_reference(weights_L: NDArray[Any], gradient_L: NDArray[Any], rate: float) -> NDArray[Any]:
    """The weights after ``sgd``, in plain numpy."""
    changed_L: NDArray[Any] = weights_L - weights_L.dtype.type(rate) * gradient_L
    return changed_L


def adam_reference(
    weights_L: NDArray[Any], mean_L: NDArray[Any], square_L: NDArray[Any], gradient_L: NDArray[Any], scales: AdamScales
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Weights, mean and square after ``adam``, in plain numpy."""
    mean_L = scales.beta_1 * mean_L + scales.rest_1 * gradient_L
    square_L = scales.beta_2 * square_L + scales.rest_2 * gradient_L * gradient_L
    changed_L = weights_L - scales.rate * mean_L / (np.sqrt(square_L) / scales.root + scales.eps)
    return changed_L, mean_L, square_L

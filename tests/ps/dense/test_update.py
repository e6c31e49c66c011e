"""The kernels against plain numpy and against torch."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ps.dense.update import adam, adam_reference, adam_scales, sgd, sgd_reference

STEPS = 20


def gradients(dtype: str) -> NDArray[np.float64]:
    drawn: NDArray[np.float64] = np.random.default_rng(5).normal(size=(STEPS, 37)).astype(dtype)
    return drawn


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-6), ("float64", 1e-14)])
def test_adam_equals_its_reference_and_torch(dtype: str, tolerance: float) -> None:
    start = gradients(dtype)[0].copy()
    weights, mean, square = start.copy(), np.zeros_like(start), np.zeros_like(start)
    plain = (start.copy(), mean.copy(), square.copy())
    theirs = torch.from_numpy(start.copy()).requires_grad_()
    optimizer = torch.optim.Adam([theirs], lr=0.01)
    for step, gradient in enumerate(gradients(dtype)):
        scales = adam_scales(0.01, step + 1, dtype)
        adam(weights, mean, square, gradient, scales)
        plain = adam_reference(*plain, gradient, scales)
        theirs.grad = torch.from_numpy(gradient)
        optimizer.step()
    assert weights.dtype == mean.dtype == np.dtype(dtype)
    for ours, expected in zip((weights, mean, square), plain, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(weights, theirs.detach().numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sgd_equals_its_reference_and_torch(dtype: str) -> None:
    weights = gradients(dtype)[0].copy()
    plain, theirs = weights.copy(), torch.from_numpy(weights.copy()).requires_grad_()
    optimizer = torch.optim.SGD([theirs], lr=0.01)
    for gradient in gradients(dtype):
        sgd(weights, gradient, weights.dtype.type(0.01))
        plain = sgd_reference(plain, gradient, 0.01)
        theirs.grad = torch.from_numpy(gradient)
        optimizer.step()
    assert np.array_equal(weights, plain)
    np.testing.assert_allclose(weights, theirs.detach().numpy(), rtol=1e-5, atol=1e-6)

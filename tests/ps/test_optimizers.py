"""Kernels against the numpy reference and against formulas written out by hand."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ps.config import OptimizerName, RowConfig
from ps.optimizers import rule_of, update_reference, update_rows

OPTIMIZERS: list[OptimizerName] = ["sgd", "adagrad", "rowwise_adagrad"]


def example(config: RowConfig, rows: int = 20) -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(3)
    values = np.abs(rng.normal(size=(rows, config.shape().total))).astype(config.float_dtype)
    return values, rng.normal(size=(rows, config.shape().value)).astype(config.float_dtype)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("wide", [True, False])
def test_kernel_equals_reference_in_float64(optimizer: OptimizerName, wide: bool) -> None:
    config = RowConfig(optimizer=optimizer, wide=wide, float_dtype="float64")
    rows, gradients = example(config)
    expected = update_reference(config, rows, gradients)
    update_rows(rule_of(config), rows, gradients)
    np.testing.assert_allclose(rows, expected, rtol=1e-13)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_float32_arithmetic_stays_in_float32(optimizer: OptimizerName) -> None:
    config = RowConfig(optimizer=optimizer, dim=1)
    rows, gradients = example(config)
    expected = update_reference(config, rows, gradients)
    update_rows(rule_of(config), rows, gradients)
    assert expected.dtype == np.float32
    assert np.array_equal(rows, expected)


def test_sgd_follows_its_formula() -> None:
    config = RowConfig(optimizer="sgd", dim=2, rate=0.5, wide_rate=0.25, float_dtype="float64")
    rows = np.array([[1.0, 2.0, 3.0]])
    update_rows(rule_of(config), rows, np.array([[0.5, -1.0, 2.0]]))
    assert rows.tolist() == [[0.75, 2.5, 2.5]]


def test_adagrad_follows_its_formula() -> None:
    config = RowConfig(optimizer="adagrad", dim=1, rate=0.5, wide_rate=0.25, eps=0.125, float_dtype="float64")
    rows = np.array([[1.0, 3.0, 7.0, 0.75]])
    update_rows(rule_of(config), rows, np.array([[3.0, -0.5]]))
    assert rows.tolist() == [[1.0 - 0.5 * 3.0 / (4.0 + 0.125), 3.0 + 0.25 * 0.5 / (1.0 + 0.125), 16.0, 1.0]]


def test_rowwise_adagrad_follows_its_formula() -> None:
    config = RowConfig(optimizer="rowwise_adagrad", dim=2, rate=0.5, wide_rate=0.25, eps=0.0, float_dtype="float64")
    rows = np.array([[1.0, 2.0, 3.0, 3.5, 8.0]])
    update_rows(rule_of(config), rows, np.array([[3.0, -4.0, 1.0]]))
    shared = 0.5 / math.sqrt(3.5 + 12.5)
    assert rows.tolist() == [[1.0 - shared * 3.0, 2.0 + shared * 4.0, 3.0 - 0.25 / 3.0, 16.0, 9.0]]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_zero_gradient_changes_nothing(optimizer: OptimizerName) -> None:
    config = RowConfig(optimizer=optimizer, initial_accumulator=0.0)
    rows = np.zeros((1, config.shape().total), np.float32)
    update_rows(rule_of(config), rows, np.zeros((1, config.shape().value), np.float32))
    assert np.all(rows == 0.0)

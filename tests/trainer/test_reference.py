"""The plain loop: numbering, start values, determinism, and that it learns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ps.config import RowConfig
from ps.start import start_rows
from trainer.config import ModelConfig
from trainer.reference import Numbering, Reference

ROWS = RowConfig(dim=4, initial_accumulator=1e-4, rate=0.05, wide_rate=0.05)
MODEL = ModelConfig(mlp=(8,), cross_layers=1, base_rate=0.5)
KEYS = 50
Batch = tuple[NDArray[np.uint64], NDArray[np.float32], NDArray[np.float32]]


def stream(steps: int, size: int = 64) -> list[Batch]:
    """Clicks that depend on each key through a hidden weight of its own."""
    generator = np.random.default_rng(0)
    hidden = generator.normal(size=KEYS)
    keys = generator.integers(KEYS, size=(steps, size, 3))
    clicked = generator.random((steps, size)) < 1 / (1 + np.exp(-hidden[keys].sum(2)))
    dense = np.zeros((size, 0), np.float32)
    return [(k.astype(np.uint64), dense, c.astype(np.float32)) for k, c in zip(keys, clicked, strict=True)]


def logloss(logits: NDArray[np.float32], labels: NDArray[np.float32]) -> float:
    return float(np.mean(np.logaddexp(0, logits) - labels * logits))


@given(st.lists(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=6), max_size=6))
def test_rows_are_numbered_by_first_occurrence(keys: list[list[int]]) -> None:
    numbering, seen = Numbering(), list[int]()
    for batch in keys:
        rows, new, numbers = numbering.number(np.array([batch], np.uint64))
        fresh = [key for key in dict.fromkeys(batch) if key not in seen]
        seen += fresh
        assert new.tolist() == fresh
        assert numbers.tolist() == [seen.index(key) for key in fresh]
        assert rows.tolist() == [[seen.index(key) for key in batch]]
    assert [numbering.row(key) for key in seen] == list(range(len(seen)))


def test_keys_that_were_not_used_for_long_are_forgotten_and_their_rows_start_again() -> None:
    numbering = Numbering()
    numbering.number(np.array([[5, 6, 7]], np.uint64), step=1)
    numbering.number(np.array([[6]], np.uint64), step=2)
    assert numbering.forget(before=2) == [0, 2]
    rows, new, numbers = numbering.number(np.array([[7, 6, 8, 9]], np.uint64), step=3)
    assert (rows.tolist(), new.tolist(), numbers.tolist()) == ([[0, 1, 2, 3]], [7, 8, 9], [0, 2, 3])
    assert len(numbering) == 4


def test_new_rows_start_as_in_the_parameter_server() -> None:
    reference = Reference(ROWS, MODEL, 3, 0, seed=5)
    keys = np.array([9, 4, 7], np.uint64)
    reference.grow(keys)
    assert np.array_equal(reference.rows(), start_rows(ROWS, 5, keys))


def test_first_logits_are_the_base_rate() -> None:
    logits = Reference(ROWS, MODEL.model_copy(update={"base_rate": 0.2}), 3, 0, seed=5).step(*stream(1)[0])
    assert logits == pytest.approx(np.log(0.25), abs=1e-6)


def test_same_run_twice_is_equal_bit_for_bit() -> None:
    first, second = (Reference(ROWS, MODEL, 3, 0, seed=5) for _ in range(2))
    for batch in stream(10):
        assert np.array_equal(first.step(*batch), second.step(*batch))
    assert np.array_equal(first.rows(), second.rows())


def test_growth_of_the_table_keeps_its_rows() -> None:
    reference = Reference(ROWS, MODEL, 3, 0, seed=5)
    reference.step(*stream(1)[0])
    before = reference.rows()
    reference.grow(np.arange(1000, 4000, dtype=np.uint64))
    assert np.array_equal(reference.rows()[: len(before)], before)
    assert len(reference.rows()) == len(before) + 3000


@pytest.mark.parametrize("optimizer", ["adagrad", "rowwise_adagrad", "sgd"])
def test_clicks_are_learned(optimizer: str) -> None:
    rates = {"rate": 1.0, "wide_rate": 1.0} if optimizer == "sgd" else {}
    rows = ROWS.model_copy(update={"optimizer": optimizer, **rates})
    reference, batches = Reference(rows, MODEL, 3, 0, seed=5), stream(120)
    losses = [logloss(reference.step(*batch), batch[2]) for batch in batches]
    assert np.mean(losses[:5]) > 0.65
    assert np.mean(losses[-40:]) < 0.55

"""Parts of rows in chunks: utilities, masked gradients, and the optimizer once."""

import numpy as np
import pytest

from ps.config import OptimizerName, RowConfig, UtilityName
from ps.optimizers import rule_of, update_reference
from ps.parts import Parts, settle_reference
from ps.pruned_store import PrunedStore
from ps.settling import chunking_of, settle_rows, settle_rows_reference
from ps.start import start_rows
from tests.ps.doubles import ints

KINDS = [(chunks, wide) for chunks in (1, 2, 4, 8) for wide in (False, True)]


def drawn(config: RowConfig, rows: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Rows with some utility and any mask, and the sum of parts of each."""
    random = np.random.default_rng(3)
    rows_KT = start_rows(config, 1, np.arange(rows, dtype=np.uint64))
    rows_KT[:, -1 - config.chunks : -1] = random.random((rows, config.chunks))
    rows_KT[:, -1] = random.integers(0, 2**config.chunks, rows)
    parts_KP = random.normal(size=(rows, config.shape().part)).astype(rows_KT.dtype)
    parts_KP[:, -2] = random.integers(1, 9, rows)
    parts_KP[:, -1] = 1.37
    return rows_KT, parts_KP


@pytest.mark.parametrize("utility", ["gradient", "frequency"])
@pytest.mark.parametrize("float_dtype", ["float32", "float64"])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
@pytest.mark.parametrize(("chunks", "wide"), KINDS)
def test_settled_rows_are_those_of_the_reference(
    chunks: int, wide: bool, optimizer: OptimizerName, float_dtype: str, utility: UtilityName
) -> None:
    config = RowConfig.model_validate(
        {
            "dim": 16,
            "chunks": chunks,
            "wide": wide,
            "optimizer": optimizer,
            "float_dtype": float_dtype,
            "utility": utility,
        }
    )
    rows_KT, parts_KP = drawn(config)
    expected = settle_rows_reference(config, rows_KT, parts_KP)
    settle_rows(rule_of(config), chunking_of(config), rows_KT, parts_KP)
    first = chunking_of(config).first_utility
    assert np.array_equal(rows_KT[:, first:], expected[:, first:]), "utilities are equal to the bit"
    assert np.allclose(rows_KT, expected, rtol=1e-5, atol=1e-7)


def test_utility_grows_by_uses_times_norm_times_weight() -> None:
    config = RowConfig(dim=4, chunks=2, wide=False, optimizer="sgd", rate=1.0)
    row = np.array([[1, 1, 0, 0, 10, 20, 1]], np.float32)
    part = np.array([[3, 4, 6, 8, 2, 0.5]], np.float32)
    settle_rows(rule_of(config), chunking_of(config), row, part)
    assert row.tolist() == [[-2, -3, 0, 0, 10 + 2 * 5 * 0.5, 20 + 2 * 10 * 0.5, 1]], "the pruned chunk stays"


def test_row_of_which_all_is_live_is_trained_like_a_whole_one() -> None:
    config, whole = RowConfig(dim=8, chunks=4), RowConfig(dim=8)
    rows_KT, parts_KP = drawn(config)
    rows_KT[:, -1] = 15
    first = chunking_of(config).first_utility
    expected = update_reference(whole, rows_KT[:, :first], parts_KP[:, :9])
    settle_rows(rule_of(config), chunking_of(config), rows_KT, parts_KP)
    assert np.array_equal(rows_KT[:, :first], expected)


def test_whole_rows_have_no_chunks() -> None:
    with pytest.raises(ValueError, match=r"rows\.chunks"):
        chunking_of(RowConfig())


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_parts_are_summed_in_worker_order_with_the_weight_of_the_first(order: tuple[int, ...]) -> None:
    config = RowConfig(dim=4, chunks=2)
    store = PrunedStore(config, seed=5, chunk_rows=4)
    store.create(np.arange(10), np.arange(10, dtype=np.uint64), ints(7))
    pending = Parts(store, rule_of(config))
    _, drawn_KP = drawn(config, 6)
    for worker in order:
        pending.add(worker, ints(7, 9), drawn_KP[2 * worker : 2 * worker + 2])
    before = np.empty((2, store.shape.total), np.float32)
    store.gather(ints(7, 9), before)
    pending.apply_sums(ints(7, 9))
    total = settle_reference({worker: drawn_KP[2 * worker : 2 * worker + 2] for worker in range(3)})
    total[:, -1] = drawn_KP[0, -1]
    after = np.empty_like(before)
    store.gather(ints(7, 9), after)
    assert np.array_equal(after, settle_rows_reference(config, before, total))
    assert len(pending) == 0

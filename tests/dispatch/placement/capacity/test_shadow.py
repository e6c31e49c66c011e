import numpy as np
import pytest

from dispatch.placement.capacity import shadow
from dispatch.placement.capacity.shadow import SoleShadow
from dispatch.placement.rows.directory import Directory
from dispatch.placement.rows.index import Index
from infra.base.distinct import number_keys


def moved_by_one_worker(keys: list[np.ndarray], cache_rows: int) -> tuple[list[float], SoleShadow]:
    """Rows that a directory of one worker moves in the busier direction, step by step, and a shadow beside it."""
    directory, index, sole = Directory(np.array([cache_rows]), "lru", 1), Index(), SoleShadow(cache_rows)
    moved = []
    for step, keys_BF in enumerate(keys, 1):
        rows = index.resolve(number_keys(keys_BF))
        plan = directory.plan(step, rows, np.zeros(len(keys_BF), np.int32))
        moved.append(float(plan.traffic.busier_way(1.0)[0]))
        sole.train_batch(step, rows.rows_U)
    return moved, sole


@pytest.mark.parametrize("cache_rows", [3000, 60_000], ids=["a cache that evicts", "a cache that holds all"])
def test_a_sample_of_the_rows_moves_as_much_as_all_of_them(cache_rows: int) -> None:
    random = np.random.default_rng(3)
    keys = [(random.random((256, 8)) ** 4 * 50_000).astype(np.uint64) for _ in range(200)]
    moved, sole = moved_by_one_worker(keys, cache_rows)
    assert sole.rows_a_step == pytest.approx(np.mean(moved[-20:]), rel=0.3)


def test_every_row_followed_gives_exactly_the_pulls_of_a_cache_that_holds_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow, "SAMPLED", 1)
    monkeypatch.setattr(shadow, "DAMPING", 1.0)
    random = np.random.default_rng(4)
    keys = [(random.random((64, 4)) ** 3 * 2000).astype(np.uint64) for _ in range(30)]
    for steps in range(1, len(keys)):
        moved, sole = moved_by_one_worker(keys[:steps], 10_000)
        assert sole.rows_a_step == moved[-1]


def test_smaller_rows_move_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow, "SAMPLED", 1)
    monkeypatch.setattr(shadow, "DAMPING", 1.0)
    sole = SoleShadow(10_000)
    sole.train_batch(1, np.arange(8), np.full(8, 0.5))
    assert sole.rows_a_step == 4.0
    sole.train_batch(2, np.arange(4, 12), np.array([1.0] * 4 + [0.25] * 4))
    assert sole.rows_a_step == 1.0, "rows 4 to 7 are held"

"""The digest of all rows: equal for equal rows, however many shards hold them."""

import numpy as np
import pytest

from ps.checkpoints.digest import add_digests, digest_reference, digest_store, word_of
from ps.config import RowConfig
from ps.store import Store


def stored(config: RowConfig, numbers: range) -> Store:
    store = Store(config, 3, 4)
    store.create(np.arange(len(numbers)), np.array(numbers, np.uint64) * np.uint64(1 << 59))
    store.stamp(np.arange(len(numbers)), np.array(numbers) - 1)
    return store


@pytest.mark.parametrize(
    "config", [RowConfig(dim=2, optimizer="sgd"), RowConfig(dim=2), RowConfig(float_dtype="float64")]
)
def test_shards_sum_up_to_the_reference_of_all_rows(config: RowConfig) -> None:
    whole = stored(config, range(11))
    words = np.concatenate([whole.rows.chunk(chunk) for chunk in range(3)]).view(word_of(4 * config.shape().total))
    keys, steps = whole.keys(np.arange(11)).tolist(), whole.steps(np.arange(11)).tolist()
    expected = digest_reference([(r, keys[r], steps[r], words[r].tolist()) for r in range(11)])
    for shards in (1, 2, 3):
        parts = [digest_store(stored(config, range(shard, 11, shards)), shard, shards) for shard in range(shards)]
        assert add_digests(parts) == expected
    assert add_digests([]) == "0" * 32


def test_any_difference_changes_the_digest() -> None:
    config = RowConfig(dim=2)
    found = {digest_store(stored(config, range(5)), shard, 2) for shard in (0, 1)}
    store = stored(config, range(5))
    store.stamp(np.array([3]), np.array([77]))
    found.add(digest_store(store, 0, 2))
    store.rows.chunk(1)[0, -1] += 1
    found.add(digest_store(store, 0, 2))
    store.rows.chunk(0)[[0, 1]] = store.rows.chunk(0)[[1, 0]]
    found.add(digest_store(store, 0, 2))
    assert len(found) == 5

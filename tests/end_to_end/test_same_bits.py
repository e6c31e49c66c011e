"""What a run computes follows from its batches and the assignment of their samples, bit for bit.

Caches, evictions, flushes, write-behind and shards change what moves over which link, and nothing else. So a journal of
batches and assignments is enough to replay a run exactly.
"""

from typing import Any

import pytest

from dispatch.dense import Reduce
from ps.config import RowConfig
from ps.phases import FLUSH
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.fixed import empty_caches, train_fixed
from tests.end_to_end.threads import SMALL_MODEL, Plan, model_of

STEPS, BATCH = 14, 64
PLAIN: dict[str, Any] = {"cache_rows": 4096, "eviction": "lru", "shards": 1, "policy": "random"}
SMALL = {1: 580, 2: 400, 3: 330, 4: 250}
"""rows of a cache that just holds a micro-batch, by workers"""
OTHERS: tuple[tuple[dict[str, Any], tuple[int, ...]], ...] = (
    ({"eviction": "emark", "shards": 2, "policy": "random"}, ()),
    ({"eviction": "lfu", "shards": 3, "policy": "esd:0.5"}, (3, 4, STEPS - 1)),
    ({"cache_rows": 4096, "eviction": "lru", "shards": 5, "policy": "het"}, (1, 10)),
    ({"cache_rows": 4096, "eviction": "lru", "shards": 2, "policy": "random", "write_behind": 0.3}, ()),
    ({"eviction": "emark", "shards": 3, "policy": "random", "write_behind": 1.0}, (8,)),
)
"""small caches unless said otherwise, and the steps that a flush follows"""


@pytest.mark.parametrize(
    ("workers", "reduce", "optimizer", "model"),
    [
        (1, "hub", "adagrad", "dcn"),
        (2, "hub", "sgd", "deepfm"),
        (3, "hub", "rowwise_adagrad", "ncf"),
        (4, "hub", "adagrad", "dlrm"),
        (4, "ring", "rowwise_adagrad", "wdl"),
    ],
)
def test_caches_evictions_flushes_write_behind_and_shards_change_no_bit(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch, workers: int, reduce: Reduce, optimizer: str, model: str
) -> None:
    common: dict[str, Any] = {"workers": workers, "reduce": reduce, "batch": BATCH}
    common["rows"] = RowConfig.model_validate({"dim": 7, "optimizer": optimizer})
    common["model"] = SMALL_MODEL.model_copy(update={"name": model})
    plain, logits = train_fixed(monkeypatch, Plan(write_topic(STEPS * BATCH), **common, **PLAIN))
    for number, (other, flush_after) in enumerate(OTHERS):
        plan = Plan(write_topic(STEPS * BATCH, f"other-{number}"), **common, **{"cache_rows": SMALL[workers], **other})
        result, other_logits = train_fixed(monkeypatch, plan, flush_after)
        evicted = sum(worker.traffic.evict_pushes for worker in result.status.workers)
        behind = sum(worker.traffic.behind_pushes for worker in result.status.workers)
        assert evicted > 0 or flush_after or behind > 0, "nothing was evicted"
        assert (behind > 0) is (plan.write_behind > 0)
        assert model_of(result) == model_of(plain), f"{other} with flushes after {flush_after}"
        assert other_logits == logits


def test_with_the_same_hot_set_caches_and_shards_change_no_bit(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    common: dict[str, Any] = {"workers": 3, "batch": BATCH, "rows": RowConfig(dim=7)}
    large: dict[str, Any] = {"policy": "fae:0.05:4", "cache_rows": 2000, "shards": 1}
    small: dict[str, Any] = {"policy": "fae:0.25:4", "cache_rows": 400, "shards": 3, "eviction": "lru"}
    one, logits = train_fixed(monkeypatch, Plan(write_topic(STEPS * BATCH), **common, **large))
    two, other_logits = train_fixed(monkeypatch, Plan(write_topic(STEPS * BATCH, "other"), **common, **small))
    assert min(worker.traffic.all_reduces for worker in (*one.status.workers, *two.status.workers)) > 0
    assert model_of(one) == model_of(two)
    assert other_logits == logits


@pytest.mark.parametrize(
    ("workers", "reduce", "policy"),
    [(1, "hub", "random"), (3, "hub", "het"), (4, "hub", "random"), (3, "ring", "random")],
)
def test_a_flush_between_steps_that_are_under_way_changes_no_bit(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch, workers: int, reduce: Reduce, policy: str
) -> None:
    common: dict[str, Any] = {"workers": workers, "reduce": reduce, "batch": BATCH, "rows": RowConfig(dim=7)}
    plain, logits = train_fixed(monkeypatch, Plan(write_topic(STEPS * BATCH), **common, **PLAIN))
    other: dict[str, Any] = {"cache_rows": SMALL[workers], "policy": policy, "write_behind": 0.3}
    steps = (2, 3, 4, 9)
    flushed, other_logits = train_fixed(
        monkeypatch, Plan(write_topic(STEPS * BATCH, "other"), **common, **other), flush_behind=steps
    )
    assert {step for _, step, phase, *_ in flushed.ledger.tolist() if phase == FLUSH} >= set(steps)
    assert model_of(flushed) == model_of(plain)
    assert other_logits == logits


@pytest.mark.parametrize(("workers", "eviction"), [(2, "emark"), (3, "lru")])
def test_caches_kept_over_generations_change_no_bit_and_spare_pulls(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch, workers: int, eviction: str
) -> None:
    common: dict[str, Any] = {"workers": workers, "batch": BATCH, "rows": RowConfig(dim=7), "policy": "random"}
    caches: dict[str, Any] = {"cache_rows": 2 * SMALL[workers], "eviction": eviction, "write_behind": 0.3}
    plans = [Plan(write_topic(STEPS * BATCH, name), **common, **caches) for name in ("empty", "kept")]
    kept, other_logits = train_fixed(monkeypatch, plans[1], flush_after=(5, 6, 10))
    not_kept = empty_caches(monkeypatch)
    empty, logits = train_fixed(monkeypatch, plans[0], flush_after=(5, 6, 10))
    assert not_kept == [workers] * 3
    pulled = [sum(worker.traffic.miss_pulls for worker in result.status.workers) for result in (empty, kept)]
    assert pulled[1] < pulled[0]
    assert model_of(kept) == model_of(empty)
    assert other_logits == logits

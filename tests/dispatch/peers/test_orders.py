"""Orders of a step that was decided for real."""

import numpy as np
import pytest

from dispatch.dense import DenseMoves
from dispatch.peers.orders import training_orders
from dispatch.placement.decide import Decider
from dispatch.placement.policies.registry import parse_spec
from dispatch.placement.rows.directory import Directory
from dispatch.placement.rows.index import Index
from infra.base.distinct import number_keys
from ingest.samples import Samples


@pytest.mark.parametrize("samples", [1, 2, 8])
def test_every_order_says_how_many_workers_have_samples(samples: int) -> None:
    workers, spec = 3, parse_spec("round_robin")
    directory = Directory(np.full(workers, 64, np.int64), "lru", 1, spec.needs.synchronisation, 0)
    decider = Decider(Index(), directory, spec.build(0, "cpu"), spec.needs, np.ones(workers))
    keys_BF = np.arange(2 * samples, dtype=np.uint64).reshape(samples, 2)
    plan = decider.decide(1, number_keys(keys_BF)).plan
    batch = Samples(np.zeros(samples, np.float32), np.zeros((samples, 0), np.float32), keys_BF, np.zeros(samples))
    everyone = DenseMoves(are_all_ordered=True)
    orders = training_orders({"run": "r", "generation": 1, "step": 1}, plan.workers, batch, everyone)
    assert [order.sharing for order, _ in orders.values()] == [min(samples, workers)] * workers

"""What each policy would move: the live index, policies and directory on a stream of keys, without training.

Costs are bytes over bandwidth, in units of one row with its state over the fastest downlink: a move without state
costs its share of that, the dense part of the model according to its bytes (benchmarks/simulated/sizes.py). The first
steps, in which caches fill, are not counted. Also not counted: compute, latency, orders, and the links of the PS.

Legend: B samples of a batch, K samples of the stream, F keys per sample, n workers.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.simulated.sizes import DenseCharges
from benchmarks.simulated.workload import Workload
from dispatch.placement.capacity.elastic import ElasticTerms
from dispatch.placement.capacity.room import hot_rows
from dispatch.placement.decide import Decider, Decision, warm_up
from dispatch.placement.errors import CacheTooSmall
from dispatch.placement.policies.registry import parse_spec
from dispatch.placement.policies.spec import Spec
from dispatch.placement.rows.directory import Directory
from dispatch.placement.rows.index import Index
from dispatch.placement.rows.plan import Traffic
from infra.base.distinct import number_keys
from infra.base.errors import ConfigError

SEED = 0


class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles of a time, in milliseconds."""

    p50: float
    p99: float


class Megabytes(msgspec.Struct, frozen=True):
    """Megabytes moved over all workers' links in all measured steps, both directions."""

    miss_pull: float
    update_push: float
    evict_push: float
    all_reduce: float
    dense: float


class LinkMs(msgspec.Struct, frozen=True):
    """How long the slowest worker of a step transfers, in milliseconds; means over steps."""

    rows: float
    dense: float


class DispatchResult(msgspec.Struct, frozen=True):
    """What one policy moved. Lists are per worker, in whole rows; cost and link time in those over the fastest link."""

    policy: str
    steps: int
    """Number of measured steps."""
    cost: float
    miss_pull: list[float]
    update_push: list[float]
    evict_push: list[float]
    all_reduce: list[float]
    """Gradients of replicated rows: in a ring of n workers each link carries 2(n-1)/n of those summed."""
    dense: list[float]
    """Weights and gradients of the dense part."""
    behind_push: list[float]
    """Rows written behind, ahead of a flush: not part of the cost."""
    flush_push: int
    """Rows that a flush after the last step writes back."""
    megabytes: Megabytes
    hit_ratio: float
    link_time: float
    """Sum over steps of the slowest worker's transfer time."""
    link_ms: LinkMs
    decide_ms: Percentiles
    deadline_misses: int


def run_dispatch(workload: Workload, specs: Sequence[str]) -> list[DispatchResult]:
    """Every policy on the same stream, one after the other, each starting with empty caches."""
    return [simulate(workload, spec) for spec in specs]


def simulate(workload: Workload, policy: str) -> DispatchResult:
    """One policy over the whole stream."""
    warm_up(policy, SEED)
    spec = parse_spec(policy)
    directory = make_directory(workload, spec)
    built = spec.build(SEED, "cpu")
    costs_n = workload.row_cost_n
    elastic = ElasticTerms(dense=workload.sizes.dense_load)
    value_share = workload.sizes.value_share
    known_n = workload.known_push_cost_n
    decider = Decider(Index(), directory, built, spec.needs, costs_n, elastic, value_share, push_cost_n=known_n)
    totals = Totals(workload)
    whole = workload.batch * workload.workers
    charges = DenseCharges(workload.sizes, workload.workers)
    for step in range(workload.steps):
        decision = decide(decider, workload, step, workload.keys_KF[step * whole : (step + 1) * whole])
        dense_n = charges.step(np.bincount(decision.assignment_B, minlength=workload.workers) > 0, decision.sole)
        if step >= workload.warm_up:
            totals.add(decision, dense_n)
    return totals.result(str(spec), int(decider.flush().traffic.flush_push.sum()))


def make_directory(workload: Workload, spec: Spec) -> Directory:
    cache_rows_n = np.full(workload.workers, workload.cache_rows, np.int64)
    try:
        hot = hot_rows(spec.needs.hot_share, workload.cache_rows)
    except CacheTooSmall as error:
        raise ConfigError(f"{spec} cannot be simulated; {error}, here with --cache-ratio") from error
    return Directory(cache_rows_n, workload.eviction, 1, spec.needs.synchronisation, hot, workload.write_behind)


def decide(decider: Decider, workload: Workload, step: int, keys_BF: NDArray[np.uint64]) -> Decision:
    try:
        return decider.decide(step + 1, number_keys(keys_BF))
    except CacheTooSmall as error:
        raise ConfigError(
            f"caches of {workload.cache_rows} rows are too small in step {step + 1}; {error}, here with --cache-ratio, "
            f"or lower --batch"
        ) from error


class Totals:
    """Accumulates what the measured steps move."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._cost_5n = workload.cost_5n
        self._push_ratio_n = workload.push_cost_n / workload.row_cost_n
        self._moved_5n = np.zeros((5, workload.workers))
        """Whole rows by kind."""
        self._behind_n = np.zeros(workload.workers)
        self._lookups = 0
        self._hits = 0
        self._link_time_2 = np.zeros(2)
        """Link time of rows, and of the dense part."""
        self._decide_ms: list[float] = []

    def add(self, decision: Decision, dense_n: NDArray[np.float64]) -> None:
        """dense_n: the cost of the dense part on each link in this step."""
        traffic = decision.plan.traffic
        sizes = self._workload.sizes
        self._moved_5n += np.vstack((_moved_rows(traffic, sizes.value_share), dense_n))
        self._behind_n += traffic.behind_push
        rows_n = traffic.whole_rows(sizes.value_share, self._push_ratio_n)
        busy_2n = np.stack((rows_n * self._workload.row_cost_n, dense_n * self._cost_5n[-1]))
        self._link_time_2 += busy_2n[:, busy_2n.sum(axis=0).argmax()]
        self._lookups += int(traffic.lookups.sum())
        self._hits += int(traffic.hits.sum())
        self._decide_ms.append(1000 * decision.seconds)

    def result(self, policy: str, flush_push: int) -> DispatchResult:
        steps = len(self._decide_ms)
        deadline_ms = self._workload.deadline_ms
        p50, p99 = np.percentile(self._decide_ms, [50, 99]).tolist()
        miss_pull, update_push, evict_push, all_reduce, dense = self._moved_5n.tolist()
        return DispatchResult(
            policy=policy,
            steps=steps,
            cost=float((self._moved_5n * self._cost_5n).sum()),
            miss_pull=miss_pull,
            update_push=update_push,
            evict_push=evict_push,
            all_reduce=all_reduce,
            dense=dense,
            behind_push=self._behind_n.tolist(),
            flush_push=flush_push,
            megabytes=self._megabytes(),
            hit_ratio=self._hits / max(1, self._lookups),
            link_time=float(self._link_time_2.sum()),
            link_ms=LinkMs(*(self._link_time_2 * self._workload.row_ms / steps).tolist()),
            decide_ms=Percentiles(p50, p99),
            deadline_misses=sum(deadline_ms is not None and ms > deadline_ms for ms in self._decide_ms),
        )

    def _megabytes(self) -> Megabytes:
        sizes = self._workload.sizes
        ways_5 = np.array([1, 1, 1, 2, sizes.dense_ways])
        return Megabytes(*(ways_5 * self._moved_5n.sum(axis=1) * sizes.row / 1e6).tolist())


def _moved_rows(traffic: Traffic, value_share: float) -> NDArray[np.float64]:
    """Pulls, update pushes, evict pushes and all-reduced rows of each worker, in whole rows, [4, n]."""
    none_n = np.zeros_like(traffic.all_reduce)
    rows_4n = np.stack((traffic.miss_pull, traffic.update_push, traffic.evict_push, traffic.all_reduce))
    with_state_4n = np.stack((traffic.full_pull, traffic.update_owned, traffic.evict_owned, none_n))
    return with_state_4n + value_share * (rows_4n - with_state_4n)


def saving(result: DispatchResult, first: DispatchResult) -> float:
    """How much cheaper a policy is than the first one; negative if it costs more."""
    return 1 - result.cost / first.cost if first.cost else 0.0


def speed_up(result: DispatchResult, first: DispatchResult) -> float:
    """How many times faster the slowest links are than under the first policy."""
    return first.link_time / result.link_time if result.link_time else 1.0

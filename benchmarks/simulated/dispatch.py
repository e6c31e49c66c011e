"""What each policy would move: the live index, policies and directory on a stream of keys, without training.

Costs are bytes over bandwidth, in units of one row with its state over the fastest link: a move without state costs its
share of that. The first steps, in which caches fill, are left out of everything.

Legend: B samples of a batch, K samples of the stream, F keys a sample, n workers.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.simulated.workload import Workload
from dispatch.decide import Decider, Decision, warm_up
from dispatch.errors import CacheTooSmall
from dispatch.policies.registry import parse_spec
from dispatch.policies.spec import Spec
from dispatch.rows.directory import Directory
from dispatch.rows.hot import hot_rows
from dispatch.rows.index import Index
from dispatch.rows.plan import Traffic
from infra.errors import ConfigError

SEED = 0


class Percentiles(msgspec.Struct, frozen=True):
    """Of a time, in milliseconds."""

    p50: float
    p99: float


class DispatchResult(msgspec.Struct, frozen=True):
    """What one policy moved. Lists are per worker, in whole rows; cost and link time in those over the fastest link."""

    policy: str
    steps: int
    """measured ones"""
    cost: float
    miss_pull: list[float]
    update_push: list[float]
    evict_push: list[float]
    all_reduce: list[float]
    """gradients of replicated rows: in a ring of n workers each link carries 2(n-1)/n of those summed"""
    hit_ratio: float
    link_time: float
    """sum over steps of the slowest worker's transfer time"""
    decide_ms: Percentiles
    deadline_misses: int


def run_dispatch(workload: Workload, specs: Sequence[str]) -> list[DispatchResult]:
    """Every policy on the same stream, one after the other, each with empty caches at its start."""
    return [simulate(workload, spec) for spec in specs]


def simulate(workload: Workload, policy: str) -> DispatchResult:
    """One policy over the whole stream."""
    warm_up(policy, SEED)
    spec = parse_spec(policy)
    directory = _directory(workload, spec)
    built, costs_n = spec.build(SEED, "cpu"), workload.row_cost_n
    decider = Decider(Index(), directory, built, spec.needs, costs_n, value_share=workload.value_share)
    totals, whole = Totals(workload), workload.batch * workload.workers
    for step in range(workload.steps):
        decision = _decide(decider, workload, step, workload.keys_KF[step * whole : (step + 1) * whole])
        if step >= workload.warm_up:
            totals.add(decision.plan.traffic, decision.seconds)
    return totals.result(str(spec))


def _directory(workload: Workload, spec: Spec) -> Directory:
    cache_rows_n = np.full(workload.workers, workload.cache_rows, np.int64)
    try:
        hot = hot_rows(spec.needs.hot_share, workload.cache_rows)
    except CacheTooSmall as error:
        raise ConfigError(f"{spec} cannot be simulated; {error}, here with --cache-ratio") from error
    return Directory(cache_rows_n, workload.eviction, 1, spec.needs.synchronisation, hot)


def _decide(decider: Decider, workload: Workload, step: int, keys_BF: NDArray[np.uint64]) -> Decision:
    try:
        return decider.decide(step + 1, keys_BF)
    except CacheTooSmall as error:
        raise ConfigError(
            f"caches of {workload.cache_rows} rows are too small in step {step + 1}; {error}, here with --cache-ratio, "
            f"or lower --batch"
        ) from error


class Totals:
    """Adds up what the measured steps move."""

    def __init__(self, workload: Workload) -> None:
        self._deadline_ms = workload.deadline_ms
        self._row_cost_n = workload.row_cost_n
        self._value_share = workload.value_share
        self._moved_4n = np.zeros((4, workload.workers))
        """by kind, in whole rows"""
        self._lookups, self._hits = 0, 0
        self._link_time = 0.0
        self._decide_ms: list[float] = []

    def add(self, traffic: Traffic, seconds: float) -> None:
        none_n = np.zeros_like(traffic.all_reduce)
        rows_4n = np.stack((traffic.miss_pull, traffic.update_push, traffic.evict_push, traffic.all_reduce))
        with_state_4n = np.stack((traffic.full_pull, traffic.update_owned, traffic.evict_owned, none_n))
        self._moved_4n += with_state_4n + self._value_share * (rows_4n - with_state_4n)
        self._lookups += int(traffic.lookups.sum())
        self._hits += int(traffic.hits.sum())
        self._link_time += float((traffic.whole_rows(self._value_share) * self._row_cost_n).max())
        self._decide_ms.append(1000 * seconds)

    def result(self, policy: str) -> DispatchResult:
        p50, p99 = np.percentile(self._decide_ms, [50, 99]).tolist()
        late = [ms for ms in self._decide_ms if self._deadline_ms is not None and ms > self._deadline_ms]
        miss_pull, update_push, evict_push, all_reduce = self._moved_4n.tolist()
        return DispatchResult(
            policy=policy,
            steps=len(self._decide_ms),
            cost=float((self._moved_4n * self._row_cost_n).sum()),
            miss_pull=miss_pull,
            update_push=update_push,
            evict_push=evict_push,
            all_reduce=all_reduce,
            hit_ratio=self._hits / max(1, self._lookups),
            link_time=self._link_time,
            decide_ms=Percentiles(p50, p99),
            deadline_misses=len(late),
        )


def saving(result: DispatchResult, first: DispatchResult) -> float:
    """How much less a policy costs than the first one; negative if it costs more."""
    return 1 - result.cost / first.cost if first.cost else 0.0


def speed_up(result: DispatchResult, first: DispatchResult) -> float:
    """How many times less the slowest links need than under the first policy."""
    return first.link_time / result.link_time if result.link_time else 1.0

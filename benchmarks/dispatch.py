"""What each policy would move: the live index, policies and directory on a stream of keys, without training.

Costs are bytes over bandwidth, in units of one row with its state over the fastest link: a move without state costs its
share of that. The first steps, in which caches fill, are left out of everything.

Legend: B samples of a batch, K samples of the stream, F keys a sample, n workers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import msgspec
import numpy as np
from numpy.typing import NDArray

from dispatch.decide import Decider, Decision, relative_row_costs, warm_up
from dispatch.errors import CacheTooSmall
from dispatch.policies.registry import parse_spec
from dispatch.policies.spec import Spec
from dispatch.rows.directory import Directory
from dispatch.rows.hot import hot_rows
from dispatch.rows.index import Index
from dispatch.rows.plan import Traffic
from infra.errors import ConfigError

SEED = 0
EVICTIONS = ("emark", "lru", "lfu")
SLOW = 0.5
"""a link with less than this share of the fastest one's speed is of the slow class"""


@dataclass(frozen=True, eq=False)
class Workload:
    """A stream of keys and the workers it is dispatched to."""

    keys_KF: NDArray[np.uint64]
    links_gbit: tuple[float, ...]
    batch: int
    """samples per worker"""
    cache_rows: int
    """of each worker"""
    eviction: str = "emark"
    warm_up: int = 10
    """steps left out"""
    deadline_ms: float | None = None
    """a decision that takes longer is counted as a miss"""
    value_share: float = 1.0
    """of a row's bytes; the rest is optimizer state"""

    @property
    def workers(self) -> int:
        return len(self.links_gbit)

    @property
    def steps(self) -> int:
        """Whole batches in the stream, those left out included."""
        return len(self.keys_KF) // (self.batch * self.workers)

    @property
    def row_cost_n(self) -> NDArray[np.float64]:
        return relative_row_costs(list(self.links_gbit))


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


def make_workload(
    keys_KF: NDArray[np.uint64],
    links_gbit: Sequence[float],
    batch: int,
    cache_ratio: float,
    eviction: str = "emark",
    warm_up: int = 10,
    deadline_ms: float | None = None,
    value_share: float = 1.0,
) -> Workload:
    """A workload whose caches hold a share of the stream's distinct keys; what cannot be run is refused."""
    check_links(links_gbit)
    if eviction not in EVICTIONS:
        raise ConfigError(f"unknown eviction {eviction!r}; expected one of {', '.join(EVICTIONS)}; correct --eviction")
    if not 0 < cache_ratio <= 1:
        raise ConfigError(f"cache of {cache_ratio:g} of the keys; expected above 0, at most 1; correct --cache-ratio")
    cache_rows = max(1, int(cache_ratio * np.unique(keys_KF).size))
    workload = Workload(keys_KF, tuple(links_gbit), batch, cache_rows, eviction, warm_up, deadline_ms, value_share)
    if workload.steps <= warm_up:
        raise ConfigError(
            f"{len(keys_KF)} samples make {workload.steps} batches of {batch} × {workload.workers}; expected more than "
            f"the {warm_up} that are left out; give a longer file or lower --batch or --warm-up"
        )
    return workload


def parse_links(text: str, workers: int) -> tuple[float, ...]:
    """Speeds as written on the command line, one per worker; an empty text makes them equal."""
    if not text.strip():
        return (1.0,) * workers
    try:
        links = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(
            f"links {text!r} are no speeds; {error}; expected Gbit/s, comma-separated; correct --links"
        ) from error
    if len(links) != workers:
        raise ConfigError(f"{len(links)} links for {workers} workers; expected one speed per worker; correct --links")
    check_links(links)
    return links


def check_links(links_gbit: Sequence[float]) -> None:
    for link in links_gbit:
        if not isfinite(link) or link <= 0:
            raise ConfigError(f"link of {link:g} Gbit/s; expected a finite speed above 0 per worker; correct --links")


def check_policies(text: str) -> list[str]:
    """Policies as written on the command line, in their normal form."""
    return [str(parse_spec(policy)) for policy in text.split(",")]


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


def is_slow(links_gbit: Sequence[float]) -> list[bool]:
    """The class of each link: slow, or fast."""
    return [link < SLOW * max(links_gbit) for link in links_gbit]


def saving(result: DispatchResult, first: DispatchResult) -> float:
    """How much less a policy costs than the first one; negative if it costs more."""
    return 1 - result.cost / first.cost if first.cost else 0.0


def speed_up(result: DispatchResult, first: DispatchResult) -> float:
    """How many times less the slowest links need than under the first policy."""
    return first.link_time / result.link_time if result.link_time else 1.0

"""What a hot set of any size would save, and the size that the rule chooses.

The live directory and a policy decide all batches of a stream once for each size. In the first half, what rows cost is
counted as under ``:hot`` (dispatch/placement/rows/two_fold.py). Then caches are flushed as at a checkpoint, and the
rows of which a ring would have saved most, as many as the size says, are replicated for the second half, which is
measured. One more run replicates what the rule chooses, within the share of caches that a live run reserves. In the
others no more is reserved than is used.

Legend: n workers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from rich.table import Table

from benchmarks.simulated.dispatch import SEED
from benchmarks.simulated.workload import Workload
from dispatch.placement.arrays import F64, I64
from dispatch.placement.capacity.room import hot_rows
from dispatch.placement.capacity.server_link import shared_costs
from dispatch.placement.decide import Decider, Decision, warm_up
from dispatch.placement.policies.registry import parse_spec
from dispatch.placement.policies.spec import HOT_SHARE
from dispatch.placement.rows.directory import Directory
from dispatch.placement.rows.index import Index
from dispatch.placement.rows.two_fold import TwoFold, ring_cost
from infra.base.distinct import BatchKeys, number_keys
from infra.base.errors import ConfigError


class HotPoint(msgspec.Struct, frozen=True):
    """The second half of a stream with a hot set of one size; megabytes are means of a step."""

    rows: int
    """Replicated rows."""
    is_chosen: bool
    """Whether the rule chose them."""
    shards_mb: float
    """Over the link of the shards, both directions."""
    ring_mb: float
    """Sent by all workers to each other."""
    links_ms: float
    """Mean time of a step that the slowest link is busy with rows: of a worker or of the shards, then with the ring."""
    cost: float
    """Cost of rows as the rule counts it, relative to that without a hot set."""


@dataclass(frozen=True)
class HotWorkload:
    """A stream, its workers, and the link of the shards."""

    workload: Workload
    policy: str
    """How samples are assigned, without a hot set."""
    server_gbit: float
    """Speed of the link of the shards; 0: it does not limit."""

    @property
    def server_cost(self) -> float:
        return max(self.workload.links_gbit) / self.server_gbit if self.server_gbit else 0.0

    @property
    def title(self) -> str:
        """The workload in one line."""
        links = ",".join(f"{link:g}" for link in self.workload.links_gbit)
        server = f"{self.server_gbit:g} Gbit/s" if self.server_gbit else "wide"
        return f"{self.policy}, {self.workload.workers} workers, links {links} Gbit/s, shards' link {server}"

    @property
    def shared_cost_n(self) -> F64:
        """Cost of a row through the shards."""
        return shared_costs(self.workload.row_cost_n, self.server_cost, np.full(self.workload.workers, True))


def parse_sizes(text: str) -> list[int]:
    """Sizes as written on the command line."""
    try:
        sizes = sorted({int(part) for part in text.split(",")} | {0})
    except ValueError as error:
        raise ConfigError(f"sizes {text!r} are no numbers; {error}; expected rows; correct --sizes") from error
    if sizes[0] < 0:
        raise ConfigError(f"a hot set of {sizes[0]} rows; expected none or more; correct --sizes")
    return sizes


def run_hot(hot: HotWorkload, sizes: Sequence[int]) -> list[HotPoint]:
    """A point for each size, and one for the set that the rule chooses, in the order of their sizes."""
    warm_up(hot.policy, SEED)
    points = [_simulate(hot, size) for size in sizes]
    points.append(_simulate(hot, None, most=hot_rows(HOT_SHARE, hot.workload.cache_rows)))
    none = points[0].cost or 1.0
    relative = [msgspec.structs.replace(point, cost=point.cost / none) for point in points]
    return sorted(relative, key=lambda point: (point.rows, point.is_chosen))


def _simulate(hot: HotWorkload, size: int | None, most: int = 0) -> HotPoint:
    """size: of the set; None: what the rule chooses, at most that many."""
    workload = hot.workload
    spec = parse_spec(hot.policy)
    workers = workload.workers
    places = most if size is None else size
    if workload.cache_rows - places < workload.batch * workload.keys_KF.shape[1]:
        raise ConfigError(
            f"caches of {workload.cache_rows} rows have no room for {places} replicas and a micro-batch; expected "
            "smaller sets; lower --sizes or --batch, or raise --cache-ratio"
        )
    directory = Directory(np.full(workers, workload.cache_rows), workload.eviction, 1, "on_demand", places)
    built = spec.build(SEED, "cpu")
    value_share = workload.sizes.value_share
    decider = Decider(
        Index(), directory, built, spec.needs, workload.row_cost_n, value_share=value_share, server_cost=hot.server_cost
    )
    counted = TwoFold(max(places, 1), workers, value_share)
    half = workload.steps // 2
    decisions = []
    for step in range(workload.steps):
        if step == half:
            decider.flush()
            directory.replicate(_chosen(hot, counted, size))
        decision = decider.decide(step + 1, _keys(workload, step))
        if step < half:
            counted.count_step(
                decision.rows,
                decision.assignment_B,
                decision.plan,
                directory.replicated,
                hot.shared_cost_n,
                hot.shared_cost_n,
            )
        else:
            decisions.append(decision)
    return _measure(hot, decisions, directory.replicated.size, is_chosen=size is None)


def _chosen(hot: HotWorkload, counted: TwoFold, size: int | None) -> I64:
    """What is replicated from now on."""
    links_n = hot.workload.row_cost_n
    if size is None:
        return counted.choose(np.empty(0, np.int64), hot.shared_cost_n, links_n)
    return counted.by_saving(links_n)[:size]


def _keys(workload: Workload, step: int) -> BatchKeys:
    whole = workload.batch * workload.workers
    return number_keys(workload.keys_KF[step * whole : (step + 1) * whole])


def _measure(hot: HotWorkload, decisions: Sequence[Decision], rows: int, is_chosen: bool) -> HotPoint:
    sizes = hot.workload.sizes
    links_n = hot.workload.row_cost_n
    reduced = sum(decision.plan.traffic.reduced for decision in decisions)
    cost = reduced * ring_cost(links_n, sizes.value_share)
    moved, seconds = 0.0, 0.0
    for decision in decisions:
        moved_n = _shards_rows(decision, sizes.value_share)
        moved += float(moved_n.sum())
        cost += float((moved_n * hot.shared_cost_n).sum())
        seconds += max(float((moved_n * links_n).max()), float(moved_n.sum()) * hot.server_cost)
    n = hot.workload.workers
    seconds += reduced * ring_cost(links_n, sizes.value_share) / n
    steps = max(1, len(decisions))
    return HotPoint(
        rows=rows,
        is_chosen=is_chosen,
        shards_mb=moved * sizes.row / steps / 1e6,
        ring_mb=2 * (n - 1) * reduced * sizes.value / steps / 1e6,
        links_ms=seconds * hot.workload.row_ms / steps,
        cost=cost,
    )


def _shards_rows(decision: Decision, value_share: float) -> F64:
    """What each worker moves to and from the shards, in rows with state."""
    whole_n = np.array([worker.push_owned.rows.size + worker.pull_full.rows.size for worker in decision.plan.workers])
    value_n = np.array([worker.push_parts.rows.size + worker.pull_values.rows.size for worker in decision.plan.workers])
    return np.asarray(whole_n + value_share * value_n, np.float64)


def hot_table(points: Sequence[HotPoint], hot: HotWorkload) -> Table:
    """The points, with what the rule chose marked."""
    table = Table(title=hot.title)
    for name in ("replicated rows", "cost", "shards, MB a step", "ring, MB a step", "links busy, ms a step"):
        table.add_column(name, justify="right")
    for point in points:
        rows = f"{point.rows} (the rule)" if point.is_chosen else str(point.rows)
        megabytes = f"{point.shards_mb:.3f}", f"{point.ring_mb:.3f}"
        table.add_row(rows, f"{point.cost:.3f}", *megabytes, f"{point.links_ms:.3f}")
    return table

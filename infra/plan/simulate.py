"""What a set of workers would move and compute: the live decider and directory over the sample's batches.

A decision is a pure function of the batches, the members and measured times, so rows by worker and direction are those
of a real run over these batches. Times that a real run would measure are the plan's own: compute by ComputeCurve, and
links as given, that of the shards too. Not included: latency, orders and reports, and the time to process messages.

Legend: S steps, n workers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulated.sizes import Sizes
from dispatch.placement.capacity.bounds import ShareBounds
from dispatch.placement.capacity.elastic import ElasticTerms
from dispatch.placement.capacity.room import check_room, hot_rows
from dispatch.placement.capacity.step_model import DenseLoad
from dispatch.placement.decide import Decider, Decision, relative_row_costs, warm_up
from dispatch.placement.policies.registry import parse_spec
from dispatch.placement.rows.directory import Directory
from dispatch.placement.rows.index import Index
from dispatch.placement.rows.plan import Moves, WorkerPlan
from dispatch.placement.traffic import ring_moved
from infra.base.distinct import number_keys
from infra.plan.compute import ComputeCurve
from infra.plan.model import F64, PlannedParts

SECONDS_PER_BYTE = 8e-9
"""Seconds per byte over a link of 1 Gbit/s."""


@dataclass(frozen=True, eq=False)
class PlanJob:
    """What every set is simulated with."""

    keys: Sequence[NDArray[np.uint64]]
    """Keys of each batch, [B, F]."""
    cache_rows: int
    eviction: str
    shards: int
    sizes: Sizes
    compute: ComputeCurve
    devices: int
    """Processors or GPUs of all workers together; workers that share one compute in turn."""
    seed: int = 0
    server_gbit: float = 0.0
    """Speed of the link that all shards share; 0: it does not limit."""

    @property
    def server_seconds(self) -> float:
        """Seconds per byte over that link."""
        return SECONDS_PER_BYTE / self.server_gbit if self.server_gbit else 0.0

    @property
    def batch(self) -> int:
        return len(self.keys[0])


@dataclass(frozen=True, eq=False)
class SetLoad:
    """What the second half of the simulated steps moves and takes, by step and worker."""

    links_gbit: tuple[float, ...]
    early_bytes_Sn: F64
    """Bytes in the busier direction; for a worker alone all of its rows."""
    late_up_bytes_Sn: F64
    late_down_bytes_Sn: F64
    dense_bytes_Sn: F64
    """Dense bytes, one way."""
    compute_seconds_Sn: F64
    is_alone_S: NDArray[np.bool_]
    decide_seconds: float
    """The median of all decisions but the first ones."""
    pulled_Sn: F64
    """Rows pulled."""
    pushed_Sn: F64
    moved_bytes_S: F64
    """Bytes both ways, over all links."""
    samples_Sn: F64
    server_seconds: float = 0.0
    """Seconds per byte over the link that all shards share; 0: it does not limit."""
    is_dense_shared: bool = True
    """Whether dense weights cross that link, too; in a ring they do not."""

    def parts(self, compute: float = 1.0, links: float = 1.0) -> PlannedParts:
        """Seconds, if compute took ``compute`` times as long and links were ``links`` times as fast."""
        wire_n = SECONDS_PER_BYTE / (links * np.array(self.links_gbit))
        server = self.server_seconds / links

        def longest_S(bytes_Sn: F64, shared: float = server) -> F64:  # noqa: N802 (shape letters)
            return np.asarray(np.maximum((bytes_Sn * wire_n).max(axis=1), bytes_Sn.sum(axis=1) * shared))

        return PlannedParts(
            compute=compute * self.compute_seconds_Sn.max(axis=1),
            early_rows=longest_S(self.early_bytes_Sn),
            late_rows=longest_S(self.late_up_bytes_Sn) + longest_S(self.late_down_bytes_Sn),
            dense=longest_S(self.dense_bytes_Sn, server if self.is_dense_shared else 0.0),
            decide=np.full(len(self.is_alone_S), self.decide_seconds),
            is_alone=self.is_alone_S,
        )


@dataclass(frozen=True)
class StepLoad:
    """One simulated step, by worker."""

    early_bytes_n: F64
    late_up_bytes_n: F64
    late_down_bytes_n: F64
    dense_bytes_n: F64
    compute_seconds_n: F64
    is_alone: bool
    pulled_n: F64
    pushed_n: F64
    moved_bytes: float
    samples_n: F64


def simulate_set(
    job: PlanJob, links_gbit: Sequence[float], policy: str, shares: ShareBounds, seconds: float = float("inf")
) -> tuple[SetLoad, int]:
    """Simulates all batches, or as many as can be decided in that many seconds; returns how many. Raises CacheTooSmall.

    shares: bounds of elastic capacity
    """
    spec = parse_spec(policy)
    workers = len(links_gbit)
    fields = job.keys[0].shape[1]
    room = shares if spec.needs.elastic else None
    check_room(job.cache_rows, job.batch, workers, fields, room, spec.needs.hot_share)
    warm_up(policy, job.seed)
    decider = _decider(job, links_gbit, policy, shares)
    steps: list[StepLoad] = []
    decide_seconds = []
    began = perf_counter()
    for number, keys_BF in enumerate(job.keys):
        decision = decider.decide(number + 1, number_keys(keys_BF))
        steps.append(_load_of(job, decision, workers))
        decide_seconds.append(decision.seconds)
        _teach(decider, steps[-1], job, links_gbit)
        if perf_counter() - began > seconds and number >= 3:
            break
    load = _set_load(tuple(links_gbit), steps[len(steps) // 2 :], decide_seconds[len(steps) // 2 :])
    in_hub = job.sizes.reduce != "ring"
    return replace(load, server_seconds=job.server_seconds, is_dense_shared=in_hub), len(steps)


def _decider(job: PlanJob, links_gbit: Sequence[float], policy: str, shares: ShareBounds) -> Decider:
    spec = parse_spec(policy)
    workers = len(links_gbit)
    hot = hot_rows(spec.needs.hot_share, job.cache_rows)
    caches_n = np.full(workers, job.cache_rows, np.int64)
    directory = Directory(caches_n, job.eviction, job.shards, spec.needs.synchronisation, hot)
    dense = job.sizes.dense_load if workers > 1 else DenseLoad()
    return Decider(
        Index(),
        directory,
        spec.build(job.seed, "cpu"),
        spec.needs,
        relative_row_costs(list(links_gbit)),
        ElasticTerms(shares, dense),
        job.sizes.value_share,
        server_cost=max(links_gbit) / job.server_gbit if job.server_gbit else 0.0,
    )


def _teach(decider: Decider, load: StepLoad, job: PlanJob, links_gbit: Sequence[float]) -> None:
    """Gives the decider what a live run would have measured in this step."""
    row_seconds = job.sizes.row * SECONDS_PER_BYTE / max(links_gbit)
    for worker, samples in enumerate(load.samples_n.tolist()):
        decider.measure(worker, int(samples), float(load.compute_seconds_n[worker]), row_seconds)


def _load_of(job: PlanJob, decision: Decision, workers: int) -> StepLoad:
    samples_n = np.array(decision.plan.samples, np.float64)
    busy = int((samples_n > 0).sum())
    is_alone = busy == 1 and (workers == 1 or decision.sole is not None)
    turns = max(1.0, busy / job.devices)
    moved_n = [_worker_bytes(plan, job.sizes) for plan in decision.plan.workers]
    early_up_n, early_down_n, late_up_n, late_down_n = (np.array(part) for part in zip(*moved_n, strict=True))
    whole_n = np.maximum(early_up_n + late_up_n, early_down_n + late_down_n)
    dense_n = np.zeros(workers) if is_alone else _dense_bytes(job.sizes, samples_n)
    traffic = decision.plan.traffic
    return StepLoad(
        early_bytes_n=whole_n if is_alone else np.maximum(early_up_n, early_down_n),
        late_up_bytes_n=late_up_n,
        late_down_bytes_n=late_down_n,
        dense_bytes_n=dense_n,
        compute_seconds_n=np.array([turns * job.compute.of(int(samples)) for samples in samples_n]),
        is_alone=is_alone,
        pulled_n=traffic.miss_pull.astype(np.float64),
        pushed_n=traffic.pushes.astype(np.float64),
        moved_bytes=float((early_up_n + early_down_n + late_up_n + late_down_n + 2 * dense_n).sum()),
        samples_n=samples_n,
    )


def _dense_bytes(sizes: Sizes, samples_n: F64) -> F64:
    """Bytes one way: through the hub, workers with samples move all of it; a ring keeps everybody busy."""
    if sizes.reduce == "ring":
        return np.full(samples_n.size, float(ring_moved(samples_n.size, sizes.dense)))
    return np.where(samples_n > 0, float(sizes.dense), 0.0)


def _worker_bytes(plan: WorkerPlan, sizes: Sizes) -> tuple[float, float, float, float]:
    """Bytes early up and down, late up and down; evictions move with the early ones."""
    early_up, late_up = _bytes(plan.push_owned, plan.push_parts, sizes)
    early_down, late_down = _bytes(plan.pull_full, plan.pull_values, sizes)
    return early_up, early_down, late_up, late_down


def _bytes(whole: Moves, values: Moves, sizes: Sizes) -> tuple[float, float]:
    """Early and late bytes; whole: with optimizer state, values: without."""
    early = (whole.early + whole.evicted) * sizes.row + (values.early + values.evicted) * sizes.value
    every = whole.rows.size * sizes.row + values.rows.size * sizes.value
    return float(early), float(every - early)


def _set_load(links_gbit: tuple[float, ...], steps: Sequence[StepLoad], decide_seconds: Sequence[float]) -> SetLoad:
    return SetLoad(
        links_gbit=links_gbit,
        early_bytes_Sn=np.stack([step.early_bytes_n for step in steps]),
        late_up_bytes_Sn=np.stack([step.late_up_bytes_n for step in steps]),
        late_down_bytes_Sn=np.stack([step.late_down_bytes_n for step in steps]),
        dense_bytes_Sn=np.stack([step.dense_bytes_n for step in steps]),
        compute_seconds_Sn=np.stack([step.compute_seconds_n for step in steps]),
        is_alone_S=np.array([step.is_alone for step in steps]),
        decide_seconds=median(decide_seconds),
        pulled_Sn=np.stack([step.pulled_n for step in steps]),
        pushed_Sn=np.stack([step.pushed_n for step in steps]),
        moved_bytes_S=np.array([step.moved_bytes for step in steps]),
        samples_Sn=np.stack([step.samples_n for step in steps]),
    )

"""A plan: every set of workers that could be chosen, how long a step takes there, and which one is fastest.

The candidates are one worker alone, the 2, 4, … with the fastest links, and all. Within a set the policy divides the
batch, but parks nobody; the own choice is the same policy with all workers, free to park any of them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from benchmarks.regret import ALONE, set_sizes
from benchmarks.simulated.sizes import Sizes
from dispatch.dense import needs_ring
from dispatch.placement.capacity.bounds import ShareBounds
from dispatch.placement.errors import CacheTooSmall
from dispatch.placement.policies.registry import parse_spec
from infra.plan.compute import ComputeCurve, measure_compute
from infra.plan.model import F64, limit_of, step_seconds
from infra.plan.simulate import PlanJob, SetLoad, simulate_set
from infra.run.dense_part import STATE_COPIES, dense_part
from infra.run.settings import Settings
from ingest.samples import Samples


class PredictedMs(msgspec.Struct, frozen=True):
    """Mean milliseconds of a step, and of its parts on the slowest worker."""

    step: float
    compute: float
    early_rows: float
    """Rows that move during compute; for a worker alone all rows."""
    late_rows: float
    dense: float
    """Dense weights, one way."""
    decide: float


class PlannedSet(msgspec.Struct, frozen=True):
    """A step on one set of workers. Lists are by worker, the one with the fastest link first."""

    workers: int
    """Workers in the set; for the own choice those that take part in most steps."""
    policy: str
    ms: PredictedMs | None = None
    """Times; None if the set cannot train the batch."""
    limited_by: str = ""
    """compute, rows, dense or deciding."""
    megabytes: float = 0.0
    """Megabytes of a step, over all links, both ways."""
    rows_pulled: list[float] = []
    """Rows pulled by a step."""
    rows_pushed: list[float] = []
    samples: list[float] = []
    why_not: str = ""


class PlanResult(msgspec.Struct, frozen=True):
    """The results of a plan."""

    batch: int
    links_gbit: list[float]
    """Links, the fastest first."""
    batches: int
    """Batches that were simulated; the second half counts."""
    dense_bytes: int
    row_bytes: int
    """Bytes of a row with state."""
    compute: str
    """Where the seconds of compute come from."""
    devices: int
    candidates: list[PlannedSet]
    own: PlannedSet | None
    """What the policy chose among all workers; None if it chooses nothing."""
    fastest: int
    """Number of workers of the fastest candidate."""
    speed_up: float | None
    """Speed-up of the fastest candidate over one worker alone; None if one alone cannot train the batch."""


@dataclass(frozen=True, eq=False)
class Simulated:
    """A plan and what it was made from."""

    result: PlanResult
    loads: dict[int, SetLoad]
    """Loads by number of workers, of the candidates that can train the batch."""


def plan_job(
    settings: Settings, batches: Sequence[Samples], compute: ComputeCurve | None = None, devices: int | None = None
) -> PlanJob:
    """What a plan for these settings simulates. compute: measured here if None. devices: one a worker if None."""
    dispatch = settings.dispatch
    row = settings.rows.shape()
    bytes_each = np.dtype(settings.rows.float_dtype).itemsize
    sizes = Sizes(
        row=row.total * bytes_each,
        value=row.value * bytes_each,
        dense=dense_part(settings).bytes,
        reduce="ring" if needs_ring(settings.trainer.reduce, has_hot_set=False) else "hub",
        dense_state_copies=STATE_COPIES[settings.model.dense_optimizer],
    )
    shares = [-(-settings.stream.batch // size) for size in set_sizes(dispatch.workers)]
    return PlanJob(
        keys=[np.ascontiguousarray(batch.keys_BF) for batch in batches],
        cache_rows=dispatch.cache_rows,
        eviction=dispatch.eviction,
        shards=settings.ps.shards,
        sizes=sizes,
        compute=compute or measure_compute(settings, batches, shares),
        devices=devices or dispatch.workers,
        seed=settings.seed,
        server_gbit=settings.ps.link_gbit,
    )


def make_plan(job: PlanJob, links_gbit: Sequence[float], policy: str, shares: ShareBounds, seconds: float) -> Simulated:
    """seconds: approximate time of all simulations together; raises CacheTooSmall if no set can train the batch."""
    links = tuple(sorted(links_gbit, reverse=True))
    sizes = set_sizes(len(links))
    own_load, looked_at = simulate_set(job, links, policy, shares, seconds / (len(sizes) + 1))
    job = replace(job, keys=job.keys[:looked_at])
    loads = dict[int, SetLoad]()
    candidates = list[PlannedSet]()
    for size in sizes:
        chosen = ALONE if size == 1 else policy
        try:
            loads[size], _ = simulate_set(job, links[:size], chosen, _kept(shares, size, job.batch))
            candidates.append(_prediction(size, chosen, loads[size]))
        except CacheTooSmall as error:
            candidates.append(PlannedSet(size, chosen, why_not=str(error)))
    fastest = min(loads, key=lambda size: mean_seconds(loads[size]))
    result = PlanResult(
        batch=job.batch,
        links_gbit=list(links),
        batches=looked_at,
        dense_bytes=job.sizes.dense,
        row_bytes=job.sizes.row,
        compute=job.compute.where,
        devices=job.devices,
        candidates=candidates,
        own=_own(policy, own_load) if parse_spec(policy).needs.elastic else None,
        fastest=fastest,
        speed_up=mean_seconds(loads[1]) / mean_seconds(loads[fastest]) if 1 in loads else None,
    )
    return Simulated(result, loads)


def mean_seconds(load: SetLoad, compute: float = 1.0, links: float = 1.0) -> float:
    """Mean seconds of a step, with compute and links scaled as in ``SetLoad.parts``."""
    return float(step_seconds(load.parts(compute, links)).mean())


def speed_up_map(loads: dict[int, SetLoad], compute_X: F64, links_Y: F64) -> F64:
    """How many times faster than one worker alone the best set is, [Y, X], at these multiples of compute and links."""
    return np.array(
        [
            [mean_seconds(loads[1], x, y) / min(mean_seconds(load, x, y) for load in loads.values()) for x in compute_X]
            for y in links_Y
        ]
    )


def _kept(shares: ShareBounds, workers: int, batch: int) -> ShareBounds:
    """The same with at least one sample for everyone; bounds for each worker become one for all, as
    in a smaller set.
    """
    one_sample = min(1.0, workers / batch)
    return ShareBounds((max(one_sample, min(shares.least)),), (max(shares.largest),))


def _own(policy: str, load: SetLoad) -> PlannedSet:
    """Who takes part changes during the sample: the set that most steps have counts."""
    sets = Counter(map(tuple, (load.samples_Sn > 0).tolist()))
    return _prediction(sum(sets.most_common(1)[0][0]), policy, load)


def _prediction(workers: int, policy: str, load: SetLoad) -> PlannedSet:
    parts = load.parts()
    return PlannedSet(
        workers=workers,
        policy=policy,
        ms=PredictedMs(
            step=1000 * float(step_seconds(parts).mean()),
            compute=1000 * float(parts.compute.mean()),
            early_rows=1000 * float(parts.early_rows.mean()),
            late_rows=1000 * float(np.where(parts.is_alone, 0.0, parts.late_rows).mean()),
            dense=1000 * float(parts.dense.mean()),
            decide=1000 * float(parts.decide.mean()),
        ),
        limited_by=limit_of(parts),
        megabytes=float(load.moved_bytes_S.mean()) / 1e6,
        rows_pulled=load.pulled_Sn.mean(axis=0).tolist(),
        rows_pushed=load.pushed_Sn.mean(axis=0).tolist(),
        samples=load.samples_Sn.mean(axis=0).tolist(),
    )

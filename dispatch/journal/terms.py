"""What is fixed for a generation: by the settings and its members or, in a replay, by the journal."""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from dispatch.dense import uses_hub
from dispatch.job import DispatchJob
from dispatch.journal.history import PastGeneration
from dispatch.peers.roster import Member
from dispatch.placement.capacity.room import hot_rows, needed_rows
from dispatch.placement.capacity.server_link import ring_pays
from dispatch.placement.policies.spec import Needs


@dataclass(frozen=True)
class GenerationTerms:
    """How a generation trains."""

    workers: int
    uses_hub: bool
    """Whether shards sum dense gradients; otherwise workers do, in a ring."""
    replicas: int
    """Most rows of a hot set."""
    cache_rows: int
    needs: Needs
    reason: str


def live_terms(job: DispatchJob, needs: Needs, members: Sequence[Member], reason: str) -> GenerationTerms:
    """The terms of a generation that decides its own steps; caches hold at least a micro-batch."""
    dispatch = job.dispatch
    hub = uses_hub(job.dense.reduce, needs.ring, job.may_sum, [member.device for member in members])
    if hub and _may_choose_ring(job, needs, len(members)):
        hub = not ring_pays([member.link_gbit for member in members], job.server_gbit)
    hot = 0 if hub else hot_rows(needs.hot_share, dispatch.cache_rows)
    needed = hot + needed_rows(job.stream.batch, len(members), job.schema.fields)
    cache_rows = max(dispatch.cache_rows, needed)
    if cache_rows > dispatch.cache_rows:
        hint = "caches enlarged: fewer workers get larger micro-batches"
        structlog.get_logger().warning(hint, cache_rows=cache_rows)
    return GenerationTerms(len(members), hub, hot, cache_rows, needs, reason)


def _may_choose_ring(job: DispatchJob, needs: Needs, workers: int) -> bool:
    """Whether hub or ring is chosen by their costs: the policy would use a ring, and nobody is parked, which pays over
    the hub alone.
    """
    return needs.hot_by_cost and not needs.elastic and job.dense.reduce == "auto" and job.may_sum and workers > 1


def past_terms(job: DispatchJob, past: PastGeneration) -> GenerationTerms:
    """The terms of a generation that trains the steps of an earlier one again: everything that results depend on is
    equal.
    """
    record = past.record
    cache_rows = max(job.dispatch.cache_rows, record.replicas + past.most_samples * job.schema.fields)
    return GenerationTerms(
        workers=len(record.members),
        uses_hub=record.uses_hub,
        replicas=record.replicas,
        cache_rows=cache_rows,
        needs=Needs(),
        reason=f"replay of generation {record.number}",
    )

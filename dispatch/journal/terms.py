"""What is fixed for a generation: by the settings and its members or, in a replay, by the journal."""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from dispatch.dense import uses_hub
from dispatch.job import DispatchJob
from dispatch.journal.history import PastGeneration
from dispatch.journal.records import REPLAY
from dispatch.peers.roster import Member
from dispatch.placement.capacity.room import hot_rows, needed_rows
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


def live_terms(
    job: DispatchJob, needs: Needs, members: Sequence[Member], reason: str, in_ring: bool = False
) -> GenerationTerms:
    """The terms of a generation that decides its own steps; caches hold at least a micro-batch.

    in_ring: whether the clock chose a ring, where it may choose (``may_choose_ring``).
    """
    dispatch = job.dispatch
    hub = uses_hub(job.dense.reduce, needs.ring, job.may_sum, [member.device for member in members])
    if in_ring and may_choose_ring(job, needs, members):
        hub = False
    hot = 0 if hub else hot_rows(needs.hot_share, dispatch.cache_rows)
    needed = hot + needed_rows(job.stream.batch, len(members), job.schema.fields)
    cache_rows = max(dispatch.cache_rows, needed)
    if cache_rows > dispatch.cache_rows:
        hint = "caches enlarged: fewer workers get larger micro-batches"
        structlog.get_logger().warning(hint, cache_rows=cache_rows)
    return GenerationTerms(len(members), hub, hot, cache_rows, needs, reason)


def may_choose_ring(job: DispatchJob, needs: Needs, members: Sequence[Member]) -> bool:
    """Whether the clock may choose between hub and ring: the policy would replicate rows in a ring, and the settings
    leave it open.
    """
    devices = [member.device for member in members]
    is_open = uses_hub(job.dense.reduce, needs.ring, job.may_sum, devices) and job.dense.reduce == "auto"
    by_clock = needs.hot_by_cost and job.dispatch.choose == "clock"
    return by_clock and is_open and job.may_sum and len(members) > 1


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
        reason=f"{REPLAY} {record.number}",
    )

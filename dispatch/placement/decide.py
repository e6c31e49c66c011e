"""One decision: from a batch's keys to a plan for every worker and shard.

The same code decides in a live run, in the simulator and in tests. Without a time budget and measured times it is a
pure function of the sequence of batches, the policy and the members. With them a decision also depends on the clock;
the model never does, since any assignment of samples gives the same one.

Legend: B samples, n workers.
"""

from collections import deque
from dataclasses import dataclass, field
from time import perf_counter, thread_time
from typing import NamedTuple

import numpy as np

from dispatch.placement.arrays import F64, I32, I64, U8, Bool
from dispatch.placement.assign.choices import Backend
from dispatch.placement.assign.situation import Assignment, Policy, Situation
from dispatch.placement.assign.worth import Worth, weigh
from dispatch.placement.capacity.bounds import ShareBounds
from dispatch.placement.capacity.elastic import BY_MODEL, Elastic, ElasticTerms
from dispatch.placement.capacity.participation import SetChange
from dispatch.placement.capacity.room import equal_capacities, hot_rows
from dispatch.placement.capacity.server_link import shared_costs
from dispatch.placement.errors import BadCost, CacheTooSmall
from dispatch.placement.policies.registry import parse_spec
from dispatch.placement.policies.spec import Needs
from dispatch.placement.rows.admission import Admission, AdmissionTerms
from dispatch.placement.rows.directory import Directory
from dispatch.placement.rows.hot import Profile
from dispatch.placement.rows.index import NO_ROWS, BatchRows, Index
from dispatch.placement.rows.plan import RoundPlan
from dispatch.placement.rows.pruning import Pruner, PruneTerms
from dispatch.placement.rows.two_fold import TwoFold
from infra.base.distinct import BatchKeys, number_keys
from infra.base.errors import ConfigError
from infra.base.kernels import FEWEST_OF_A_RANGE, threads

RECENT_STEPS = 8
"""Number of steps over which the time of the rest of the work is measured."""
COMPARED_STEPS = 16
"""One in this many steps is compared with Heu, if requested."""


class DecisionParts(NamedTuple):
    """Seconds of the parts of a decision."""

    look_up: float = 0.0
    """From keys to rows, including which keys are forgotten or admitted."""
    assign: float = 0.0
    """The policy."""
    plan: float = 0.0
    """What moves, without what is concluded after the decision."""


NO_PARTS = DecisionParts()


@dataclass(frozen=True)
class Decision:
    """Which worker trains which sample of one step."""

    rows: BatchRows
    assignment_B: I32
    plan: RoundPlan
    seconds: float
    """How long it took to decide."""
    is_late: bool = False
    """Whether that was too long."""
    is_shortened: bool = False
    """Whether the policy shortened its work to meet the deadline."""
    change: SetChange | None = None
    """Change of the workers that take part, if this step begins with another set."""
    sole: int | None = None
    """The worker that takes part alone by decision, with all others parked and none tried, and so owns the dense
    weights.
    """
    hot: I64 | None = None
    """Rows that are replicated from this step on; None: as before."""
    forget_before: int = 0
    """Keys that were last used before this step were forgotten before rows were assigned; 0: none were."""
    forgotten: I64 = field(default_factory=lambda: NO_ROWS)
    """Numbers of the rows that these keys had, ascending."""
    admitted: bytes | None = None
    """Which of its unknown keys got rows, see Admission.admit; None: all."""
    chunked: int | None = None
    """How many of its new rows got chunks, the first ones; None: all."""
    bare: I64 = field(default_factory=lambda: NO_ROWS)
    """Numbers of the new rows that got none."""
    cpu_seconds: float = 0.0
    """Processor seconds of the deciding thread."""
    parts: DecisionParts = NO_PARTS
    worth: Worth | None = None
    """The worth of exact solving compared with Heu; None: not compared in this step."""


class Decider:
    """Decides step after step for the members of one generation."""

    def __init__(
        self,
        index: Index,
        directory: Directory,
        policy: Policy,
        needs: Needs,
        row_cost_n: F64,
        elastic: ElasticTerms = BY_MODEL,
        value_share: float = 1.0,
        admission: Admission | None = None,
        pruner: Pruner | None = None,
        sizes: F64 | None = None,
        server_cost: float = 0.0,
        push_cost_n: F64 | None = None,
    ) -> None:
        """needs: of the policy; the directory must have been created for them, too. value_share: see Situation.

        admission: which keys get rows; None: all. pruner: which new rows get chunks. sizes: bytes of a row, with its
        state, by its mask over those of a whole one; None: all rows are whole. server_cost: of a row over the link that
        all shards share, in the unit of row_cost_n; 0: it does not limit. row_cost_n, push_cost_n: of a row over each
        worker's downlink and uplink; None: both are equal.
        """
        push_cost_n = row_cost_n if push_cost_n is None else push_cost_n
        check_row_costs(row_cost_n, directory.workers)
        check_row_costs(push_cost_n, directory.workers)
        self._index = index
        self._admission = admission
        self._pruner = pruner or Pruner(PruneTerms())
        self._directory = directory
        self._directory.use_sizes(sizes)
        self._policy = policy
        self.alpha = needs.alpha
        """Share of exact solving in the next decisions; may be set between two."""
        self.compares = False
        """Whether the cost is regularly compared with Heu's; changes no decision."""
        self.may_replicate = True
        """Whether the next choice of rows to replicate by what they cost may name any; may be set between two."""
        self._row_cost_n = row_cost_n
        self._push_cost_n = push_cost_n
        self._server_cost = server_cost
        self._value_share = value_share
        self._elastic: Elastic | None = None
        if needs.elastic:
            self._elastic = Elastic(
                row_cost_n=row_cost_n,
                cache_rows_n=directory.cache_rows_n,
                shares=elastic.shares,
                dense=elastic.dense,
                choice=elastic.choice,
                server_cost=server_cost,
                push_cost_n=push_cost_n,
            )
        self._profile: Profile | None = None
        if needs.profile_steps:
            self._profile = Profile(needs.profile_steps, directory.replicas, directory.workers, needs.only_worthwhile)
        self._two_fold: TwoFold | None = None
        if needs.hot_by_cost and directory.replicas and directory.workers > 1:
            self._two_fold = TwoFold(directory.replicas, directory.workers, value_share)
        self._was_flushed = False
        """Whether no step was decided since the last flush."""
        self._other_seconds: deque[float] = deque(maxlen=RECENT_STEPS)

    def decide(
        self,
        step: int,
        keys: BatchKeys,
        budget_seconds: float | None = None,
        late_seconds: float = float("inf"),
        forget_before: int = 0,
    ) -> Decision:
        """budget_seconds: how long it may take; the policy gets what the rest of the work leaves of it.

        late_seconds: the decision is late if it takes longer. forget_before: see Decision.
        """
        began = perf_counter()
        cpu_began = thread_time()
        samples, fields = keys.local_BF.shape
        if self._was_flushed and self._directory.replicated.size:
            # what is replicated is not forgotten; a recovery that begins here learns of it in this step only
            forget_before = 0
        forgotten = self._forget(forget_before)
        keys, admitted = self._admit(step, keys)
        rows = self._index.resolve(keys)
        resolved = perf_counter()
        chunked, bare = self._give_chunks(rows)
        hot = self._choose_hot_set(rows)
        # the least of the latest steps, so that one slow step does not make decisions worse
        left = None if budget_seconds is None else budget_seconds - min(self._other_seconds, default=0.0)
        capacity_n, change = self._capacities(step, rows, samples, fields)
        try:
            assigned = self._assign(step, rows, capacity_n, left)
        except CacheTooSmall:
            if self._elastic is None:
                raise
            # the samples had fewer rows in common than expected; the directory has not changed yet
            assigned = self._assign(step, rows, self._elastic.safe_capacities(samples, fields), left)
        assignment = assigned.assignment
        plan = assigned.plan
        sole = self._update_capacities(plan)
        if self._two_fold is not None and self.may_replicate:
            replicated = self._directory.replicated
            costs = self._shared_costs(np.bincount(assignment.worker_B, minlength=capacity_n.size) > 0)
            self._two_fold.count_step(rows, assignment.worker_B, plan, replicated, *costs)
        seconds = perf_counter() - began
        cpu_seconds = thread_time() - cpu_began
        self._other_seconds.append(seconds - assigned.policy_seconds)
        if self._elastic is not None:
            self._elastic.measure_decision(seconds)
        return Decision(
            rows,
            assignment.worker_B,
            plan,
            seconds,
            is_late=seconds > late_seconds,
            is_shortened=assignment.was_shortened,
            change=change,
            sole=sole,
            hot=hot,
            forget_before=forget_before,
            forgotten=forgotten,
            admitted=admitted,
            chunked=chunked,
            bare=bare,
            cpu_seconds=cpu_seconds,
            parts=DecisionParts(resolved - began, assigned.policy_seconds, assigned.plan_seconds),
            worth=self._compare(assigned),
        )

    def _compare(self, assigned: "Assigned") -> Worth | None:
        situation = assigned.situation
        if situation is None or not self.compares or situation.step % COMPARED_STEPS:
            return None
        return weigh(situation, assigned.assignment.worker_B, assigned.policy_seconds)

    def repeat(
        self,
        step: int,
        keys: BatchKeys,
        worker_B: I32,
        sole: int | None = None,
        hot: I64 | None = None,
        forget_before: int = 0,
        admitted: bytes | None = None,
        chunked: int | None = None,
    ) -> Decision:
        """Repeats an earlier decision: this assignment, its sole worker, the keys that it forgot and admitted, how many
        new rows got chunks and, if given, this hot set.
        """
        began = perf_counter()
        forgotten = self._forget(forget_before)
        if admitted is not None:
            assert self._admission is not None, "a step that admitted keys is repeated without a key for rare ones"
            keys_BF = keys.matrix
            keys = number_keys(self._admission.repeat(keys_BF, self._index.knows(keys_BF), admitted))
        rows = self._index.resolve(keys)
        _, bare = self._give_chunks(rows, _new_rows(rows).size if chunked is None else chunked)
        if hot is not None:
            self._directory.replicate(hot)
        plan = self._directory.plan(step, rows, worker_B)
        return Decision(
            rows,
            worker_B,
            plan,
            perf_counter() - began,
            sole=sole,
            hot=hot,
            forget_before=forget_before,
            forgotten=forgotten,
            admitted=admitted,
            chunked=chunked,
            bare=bare,
        )

    def reshape(self, rows: I64, masks: U8) -> None:
        """Has copies of these rows pulled again before they are used, since chunks of them were pruned or came back.

        masks: which of their chunks are live now.
        """
        self._directory.reshape(rows, masks)

    def use_sizes(self, sizes_M: F64 | None) -> None:
        """Sets the bytes of a row by its mask, over those of a whole one; None: all rows are whole."""
        self._directory.use_sizes(sizes_M)

    def drop_copies(self) -> None:
        """Has copies of all rows pulled again before they are used."""
        self._directory.drop_copies()

    def measure(self, worker: int, samples: int, compute_seconds: float, row_seconds: float) -> None:
        """Records what a worker measured in a step; only elastic capacities depend on it."""
        if self._elastic is not None:
            self._elastic.measure(worker, samples, compute_seconds, row_seconds)

    def measure_step(self, step: int, seconds: float) -> None:
        """Records how long a whole step took, from the end of the one before; only elastic capacities depend on it."""
        if self._elastic is not None:
            self._elastic.measure_step(step, seconds)

    @property
    def is_settled(self) -> bool:
        """Whether it is found who takes part."""
        return self._elastic is None or self._elastic.participation.is_settled

    def ring_seconds(self, hub_seconds: float) -> float | None:
        """How long a step should take in a ring, if it takes so long over the hub; None: equal capacities do not
        know.
        """
        return None if self._elastic is None else self._elastic.ring_seconds(hub_seconds)

    def charge(self, row_cost_n: F64, server_cost: float = 0.0, push_cost_n: F64 | None = None) -> None:
        """Sets the cost of a row over each downlink, over the link of all shards, and over each uplink from now on.

        push_cost_n: None: as over the downlink.
        """
        push_cost_n = row_cost_n if push_cost_n is None else push_cost_n
        check_row_costs(row_cost_n, self._directory.workers)
        check_row_costs(push_cost_n, self._directory.workers)
        self._row_cost_n = row_cost_n
        self._push_cost_n = push_cost_n
        self._server_cost = server_cost
        if self._elastic is not None:
            self._elastic.charge(row_cost_n, server_cost, push_cost_n)

    def bound(self, shares: ShareBounds) -> None:
        """Sets the bounds of elastic capacities from now on."""
        if self._elastic is not None:
            self._elastic.bound(shares)

    def use(self, policy: Policy) -> None:
        """Uses another policy from the next decision on, which must need the same of the directory."""
        self._policy = policy

    def write_behind(self, is_due: bool) -> None:
        """Sets whether owners push rows ahead of a flush from now on."""
        self._directory.write_behind(is_due)

    def flush(self) -> RoundPlan:
        self._was_flushed = True
        return self._directory.flush()

    def _forget(self, before: int) -> I64:
        """Forgets the keys that were last used before a step; returns the numbers of their rows."""
        if not before:
            return NO_ROWS
        forgotten, live = self._directory.forget(self._index.keys, before)
        self._index.forget(forgotten)
        if self._pruner.terms.chunks:
            self._pruner.forget(live)
        if self._profile is not None:
            self._profile.forget(forgotten)
        if self._two_fold is not None:
            self._two_fold.forget(forgotten)
        return forgotten

    def _admit(self, step: int, keys: BatchKeys) -> tuple[BatchKeys, bytes | None]:
        """The keys whose rows the samples use, and which of the unknown ones were admitted; None: all."""
        if self._admission is None or not self._admission.terms.is_needed:
            return keys, None
        keys_BF = keys.matrix
        admitted_BF, admitted = self._admission.admit(step, keys_BF, self._index.knows(keys_BF))
        return (keys if admitted_BF is keys_BF else number_keys(admitted_BF)), admitted

    def _give_chunks(self, rows: BatchRows, chunked: int | None = None) -> tuple[int | None, I64]:
        """How many of a batch's new rows get chunks, None if all do; and those that get none. chunked: as recorded."""
        new = _new_rows(rows)
        count = self._pruner.admit(new.size, chunked)
        if self._pruner.terms.chunks:
            masks = np.zeros(new.size, np.uint8)
            masks[:count] = self._pruner.terms.full_mask
            self._directory.set_masks(new, masks)
        return (None, NO_ROWS) if count == new.size else (count, new[count:])

    def _choose_hot_set(self, rows: BatchRows) -> I64 | None:
        """Chooses the rows that are replicated from this step on; None: as before.

        In the first step after a flush they are named even if they are the same: a recovery may begin with that step.
        """
        was_flushed = self._was_flushed
        self._was_flushed = False
        before = self._directory.replicated
        hot = self._profile.count_batch(rows) if self._profile is not None else None
        if hot is not None:
            self._directory.replicate(hot, for_good=True)
            return hot
        if was_flushed and self._two_fold is not None:
            everyone_n = np.full(self._directory.workers, True)
            row_cost_n, _ = self._shared_costs(everyone_n)
            hot = self._two_fold.choose(before, row_cost_n, np.maximum(self._row_cost_n, self._push_cost_n))
            if not self.may_replicate:
                hot = NO_ROWS
            self._directory.replicate(hot)
            return hot if hot.size or before.size else None
        return before if was_flushed and before.size else None

    def _shared_costs(self, uses_link_n: Bool) -> tuple[F64, F64]:
        """Cost of pulling and of pushing a row through the shards; uses_link_n: who has samples."""
        pull_n = shared_costs(self._row_cost_n, self._server_cost, uses_link_n)
        return pull_n, shared_costs(self._push_cost_n, self._server_cost, uses_link_n)

    def _capacities(self, step: int, rows: BatchRows, samples: int, fields: int) -> tuple[I64, SetChange | None]:
        if self._elastic is None:
            return equal_capacities(samples, self._directory.workers), None
        self._elastic.watch(step, rows.rows_U, self._directory.sizes(rows.rows_U))
        change = self._elastic.choose_members(samples, fields, step)
        return self._elastic.capacities(samples, fields), change

    def _update_capacities(self, plan: RoundPlan) -> int | None:
        """Updates elastic capacities with what the step moves; returns the sole worker, see Decision."""
        workers = self._directory.workers
        if self._elastic is None:
            return 0 if workers == 1 else None
        samples_n = np.array(plan.samples)
        moved_n = plan.traffic.busier_way(self._value_share, self._elastic.push_ratio_n)
        shared_n = plan.traffic.busier_way(self._value_share)
        self._elastic.shift_shares(samples_n, plan.traffic.lookups, moved_n, shared_n)
        return self._elastic.sole(samples_n)

    def _assign(self, step: int, rows: BatchRows, capacity_n: I64, budget_seconds: float | None) -> "Assigned":
        """Assigns samples within these places; if one worker has them all, there is nothing to decide."""
        samples = rows.local_BF.shape[0]
        with_places = np.flatnonzero(capacity_n)
        if with_places.size == 1:
            assignment = Assignment(np.full(samples, with_places[0], np.int32))
            return self._plan(step, rows, assignment)
        state_U, holders_UQ = self._directory.look_up(rows)
        row_cost_n, push_cost_n = self._shared_costs(capacity_n > 0)
        situation = Situation(
            step,
            rows.local_BF,
            state_U,
            holders_UQ,
            row_cost_n,
            capacity_n,
            value_share=self._value_share,
            size_U=self._directory.sizes(rows.rows_U),
            alpha=self.alpha,
            budget_seconds=budget_seconds,
            up_cost_n=push_cost_n,
        )
        began = perf_counter()
        assignment = self._policy.assign(situation)
        return self._plan(step, rows, assignment, perf_counter() - began, situation)

    def _plan(
        self,
        step: int,
        rows: BatchRows,
        assignment: Assignment,
        policy_seconds: float = 0.0,
        situation: Situation | None = None,
    ) -> "Assigned":
        began = perf_counter()
        plan = self._directory.plan(step, rows, assignment.worker_B)
        return Assigned(assignment, plan, policy_seconds, perf_counter() - began, situation)


def _new_rows(rows: BatchRows) -> I64:
    """The rows that new keys got, in order of first use: numbers of forgotten keys are assigned first."""
    return np.concatenate((rows.reused, rows.first_new + np.arange(rows.new_keys.size)))


class Assigned(NamedTuple):
    """The assignment of a step's samples."""

    assignment: Assignment
    plan: RoundPlan
    policy_seconds: float = 0.0
    plan_seconds: float = 0.0
    situation: Situation | None = None
    """The situation that the policy was given; None: it was not asked."""


def warm_up(policy: str, seed: int, backend: Backend = "cpu", chunks: int = 0) -> None:
    """Makes a few decisions on synthetic keys, so that no real one waits for kernels to be compiled.

    chunks: of a row, as in PruneTerms.

    It covers rows that samples have in common and that nobody holds at first, the policy's full alpha, less, and none,
    and a comparison with Heu: each has different kernels. So do decisions for one worker and those of large batches, if
    others are divided among threads.
    """
    for workers in (2, 1) if threads() > 1 else (2,):
        _warm_up(policy, seed, backend, chunks, workers)
    if threads() > 1:
        keys = number_keys(np.arange(2 * FEWEST_OF_A_RANGE, dtype=np.uint64).reshape(-1, 1))
        rows = Index().resolve(keys)
        directory = Directory(np.full(1, rows.rows_U.size, np.int64), "lru", 1)
        directory.plan(1, rows, np.zeros(rows.rows_U.size, np.int32))
    Index(1).resolve(number_keys(np.arange(64, dtype=np.uint64).reshape(-1, 1)))  # its table doubles


def _warm_up(policy: str, seed: int, backend: Backend, chunks: int, workers: int) -> None:
    spec = parse_spec(policy)
    replicas = min(8, hot_rows(spec.needs.hot_share, 1 << 20))
    caches = np.full(workers, 32, np.int64)
    directory = Directory(caches, "lru", 2, spec.needs.synchronisation, replicas, write_behind=1.0)
    index = Index.restore(np.arange(4, dtype=np.uint64))
    admission = Admission(AdmissionTerms(after=2, filter_bytes=1024), np.arange(2, dtype=np.uint64))
    built = spec.build(seed, backend)
    decider = Decider(
        index=index,
        directory=directory,
        policy=built,
        needs=spec.needs,
        row_cost_n=np.arange(1.0, workers + 1, dtype=np.float64),
        admission=admission,
        pruner=Pruner(PruneTerms(chunks)),
        sizes=np.ones(1 << chunks) if chunks else None,
    )
    decider.compares = True
    for step, share in ((1, 1.0), (2, 0.5), (3, 0.0), (COMPARED_STEPS, 1.0)):
        decider.alpha = share * spec.needs.alpha
        keys_BF = (np.arange(16, dtype=np.uint64) % 5 + step).reshape(8, 2)
        decider.decide(step, number_keys(keys_BF), forget_before=max(0, step - 3))
    decider.flush()
    if spec.needs.hot_by_cost and workers > 1:
        for step, hot in enumerate((4, 2, 0), start=COMPARED_STEPS + 1):  # rows enter, and leave
            decider.decide(step, number_keys(np.arange(16, dtype=np.uint64).reshape(8, 2) % np.uint64(5)))
            directory.replicate(np.arange(hot))
    if chunks:
        decider.reshape(np.arange(2), np.zeros(2, np.uint8))
        decider.drop_copies()


def check_row_costs(row_cost_n: F64, workers: int) -> None:
    """Raises an error for costs of links with which no decision could be made."""
    if row_cost_n.shape != (workers,) or not (np.isfinite(row_cost_n) & (row_cost_n > 0)).all():
        raise BadCost(
            f"cannot decide where samples go; row costs are {row_cost_n.tolist()} for {workers} workers; expected one "
            f"finite cost above 0 per worker; check the speeds of the links"
        )


def relative_row_costs(links_gbit: list[float], uplinks_gbit: list[float] | None = None) -> F64:
    """Cost of a row over each link in units of the fastest; a link of 0 is unknown and counts as the fastest.

    uplinks_gbit: what the row crosses instead, in the same units.
    """
    crossed_gbit = links_gbit if uplinks_gbit is None else uplinks_gbit
    for link in (*links_gbit, *crossed_gbit):
        if not np.isfinite(link) or link < 0:
            raise ConfigError(
                f"link speed cannot be used; got {link} Gbit/s; expected a positive number, or 0 if it is not known; "
                "correct the worker's link"
            )
    fastest = max(links_gbit, default=0.0) or 1.0
    return np.array([fastest / (link or fastest) for link in crossed_gbit])

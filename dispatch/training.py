"""What the dispatcher knows about the model and its progress, apart from the journal.

All of it follows from a checkpoint and the recorded steps after it, so a recovery discards it and builds it again.
"""

from collections.abc import Iterable, Iterator, Mapping
from time import time
from typing import NamedTuple

import numpy as np
import structlog
from numpy.typing import NDArray

from dispatch.checkpoints.search import UsableCheckpoint
from dispatch.checkpoints.state import DispatcherState, Trained
from dispatch.dense import NO_MOVES, DenseTurns
from dispatch.job import DispatchJob
from dispatch.journal.records import StepFigures
from dispatch.journal.terms import GenerationTerms, may_choose_ring
from dispatch.peers.roster import Member
from dispatch.placement.arrays import U8
from dispatch.placement.assign.situation import Policy
from dispatch.placement.capacity.bounds import ShareBounds
from dispatch.placement.capacity.choice import MeasuredChoice
from dispatch.placement.capacity.elastic import ElasticTerms
from dispatch.placement.capacity.hub_or_ring import HubOrRing
from dispatch.placement.capacity.participation import Everyone, Participation
from dispatch.placement.capacity.replica_trial import ReplicaTrial
from dispatch.placement.capacity.server_link import ring_saves
from dispatch.placement.capacity.set_times import SetTimes
from dispatch.placement.capacity.step_model import rows_of_dense
from dispatch.placement.decide import Decider, Decision
from dispatch.placement.policies.spec import Needs
from dispatch.placement.rows.admission import Admission, AdmissionTerms
from dispatch.placement.rows.directory import Directory
from dispatch.placement.rows.expiry import Expiry
from dispatch.placement.rows.index import NO_ROWS, Index
from dispatch.placement.rows.pruning import Pruner, PrunerState
from dispatch.progress.accounts import Accounts
from dispatch.progress.drift import Drift, DriftTerms
from dispatch.progress.feedback import Feedback, WorkerLink
from dispatch.progress.newest import NewestSamples
from dispatch.progress.over_time import OverTime
from dispatch.progress.probes import LinkProbes
from dispatch.progress.quality import DriftStatus, QualityOverTime
from dispatch.progress.status import ChoiceStatus, ChunkCounts, KeyCounts
from dispatch.progress.underway import OrderedRound, RoundsUnderway
from dispatch.protocol import Probed
from infra.base.link_gbit import LinkGbit
from infra.base.rest import LeftOver
from ingest.keys import rare_keys
from ingest.samples import Samples
from ps.phases import FLUSH


class CompletedRound(NamedTuple):
    """A round that has been reported by every member that was ordered to take part."""

    round: OrderedRound
    figures: StepFigures | None
    """Figures of a training step; None for a flush."""


class Training:
    """State that follows from one checkpoint and the steps after it."""

    def __init__(self, job: DispatchJob, needs: Needs, checkpoint: UsableCheckpoint | None = None) -> None:
        """checkpoint: the one that the run goes back to; None for the empty model."""
        self._job = job
        self.index = Index() if checkpoint is None else checkpoint.index
        self.index.forgotten = 0 if checkpoint is None else checkpoint.state.decided.forgotten
        memory = job.memory
        times = () if checkpoint is None else checkpoint.state.decided.expiry
        self.expiry = Expiry(memory.expire_steps, memory.expire_hours, job.dispatch.lookahead, times)
        terms = AdmissionTerms(memory.admit_after, memory.admit_share, memory.filter_bytes)
        self._admission = Admission(terms, rare_keys(job.schema.key_tables), job.seed)
        self._admission.rare = 0 if checkpoint is None else checkpoint.state.decided.rare
        pruning = None if checkpoint is None else checkpoint.state.decided.pruning
        self.pruner = Pruner(job.prune_terms(), pruning or PrunerState())
        self.accounts = Accounts(job.run, job.dispatch.policy, job.mark_at, job.schema.more_labels)
        self._over_time = OverTime(job.quality.places(job.schema), job.quality.slice_values, job.quality.window_samples)
        """Quality in windows and slices."""
        quality = job.quality
        terms_of_drift = DriftTerms(quality.label_change, quality.field_change, quality.window_samples)
        self._drift = Drift(terms_of_drift, job.schema)
        """Changes of the click rate and of fields."""
        self._measuring = LeftOver()
        """What the two have not added yet."""
        self.feedback = Feedback(job.dispatch, needs.elastic, job.row_bytes, job.server_gbit)
        self._probes = LinkProbes(job.dispatch.probe_seconds)
        self.underway = RoundsUnderway()
        self.newest = NewestSamples()
        """The samples trained last, and their logits."""
        self.dense = DenseTurns(are_on_shards=checkpoint is not None)
        """Tracks where the dense weights are."""
        self.dense_moves = NO_MOVES
        """Dense weights that the announced step moves."""
        self._decider: Decider | None = None
        self._directory: Directory | None = None
        self._last_steps_R = NO_ROWS if checkpoint is None else checkpoint.last_steps_R
        """When each row of the checkpoint was last trained, for the first directory."""
        self._members: tuple[Member, ...] = ()
        """Members of the generation that the directory was made for."""
        self._links: Mapping[str, LinkGbit] = {}
        """Link speeds that operators have set since the workers joined, by worker name."""
        self._set_times = SetTimes()
        """Measured step times of each set of workers."""
        self._ring_times = SetTimes()
        """The same in a ring that the clock chose."""
        self.hub_or_ring = HubOrRing()
        """Chooses how gradients are summed, where the policy and the settings leave it open."""
        self._replica_trial = ReplicaTrial()
        """Finds whether replicated rows pay in a ring that the clock has chosen."""
        self._flushed = (0, 0)
        """The step that was flushed last, and how many flushes followed its first one."""
        if checkpoint is not None:
            self._load(checkpoint.state)

    def _load(self, state: DispatcherState) -> None:
        """Loads a checkpoint's state: the counterpart of ``trained`` and, for decisions, of ``Intake.decided``."""
        self.accounts.load(state.trained.accounts)
        self.feedback.load(state.trained.links)
        self._set_times.load(state.trained.sets)
        self._ring_times.load(state.trained.ring_sets)
        self.hub_or_ring = HubOrRing(state.trained.hub_or_ring)
        if state.trained.over_time is not None:
            self._over_time.load(state.trained.over_time)
        if state.trained.drift is not None:
            self._drift.load(state.trained.drift)
        if state.decided.decisions is not None:
            self.accounts.decisions.load(state.decided.decisions)

    def trained(self) -> Trained:
        """Returns what a checkpoint stores about training once its flush is complete."""
        self._measuring.wait()
        return Trained(
            accounts=self.accounts.save(),
            links=self.feedback.save(),
            sets=self._set_times.save(),
            ring_sets=self._ring_times.save(),
            hub_or_ring=self.hub_or_ring.save(),
            over_time=self._over_time.save(),
            drift=self._drift.save(),
        )

    @property
    def keys(self) -> KeyCounts:
        """How many keys have rows."""
        known = self.index.known
        free = self.index.count - known
        rows = self._job.rows
        chunks_bytes = self.pruner.state.live * rows.chunk_bytes(self.pruner.state.columns) if rows.chunks else 0
        nbytes = self.index.count * rows.key_bytes + chunks_bytes
        forgotten = self.index.forgotten
        return KeyCounts(known=known, free=free, forgotten=forgotten, rare=self._admission.rare, shard_bytes=nbytes)

    @property
    def chunks(self) -> ChunkCounts:
        """How many chunks of rows are live."""
        terms = self.pruner.terms
        if not terms.chunks:
            return ChunkCounts()
        state = self.pruner.state
        return ChunkCounts(
            per_row=terms.chunks,
            live=state.live,
            budget=terms.budget,
            bytes=self._job.rows.chunk_bytes(state.columns),
            columns=len(state.columns) or self._job.rows.dim,
            dim=self._job.rows.dim,
            pruned=state.pruned,
            brought_back=state.brought_back,
        )

    def measured_over_time(self) -> tuple[QualityOverTime, DriftStatus]:
        """Quality in windows and slices, and changes of the click rate and of fields."""
        self._measuring.wait()
        return self._over_time.report(), self._drift.status

    @property
    def decider(self) -> Decider:
        assert self._decider is not None, "no generation has started"
        return self._decider

    def start_generation(
        self, terms: GenerationTerms, members: tuple[Member, ...], policy: Policy, masks_R: U8 | None = None
    ) -> list[bool]:
        """Starts a generation, in which every row is clean; returns for each member whether it keeps its cache.

        Members that stay keep their caches; the others start with empty ones. masks_R: which chunks of each row of the
        checkpoint are live, if one was loaded and rows have chunks.
        """
        directory = Directory(
            np.full(terms.workers, terms.cache_rows, np.int64),
            self._job.dispatch.eviction,
            self._job.shards,
            terms.needs.synchronisation,
            terms.replicas,
            self._job.write_behind,
        )
        keeps = [False] * terms.workers
        if self._directory is not None:
            before = {member: number for number, member in enumerate(self._members)}
            keeps = directory.continue_from(self._directory, [before.get(member) for member in members])
        else:
            directory.load(self._last_steps_R, masks_R)
            self._last_steps_R = NO_ROWS
        self._directory = directory
        self._members = members
        links = [WorkerLink(member.name, member.link_gbit, member.uplink_gbit) for member in members]
        costs = self.feedback.start_generation(links)
        self.accounts.set_parked(())
        self.accounts.choice = ChoiceStatus()
        self.accounts.set_members([member.name for member in members])
        self._set_speeds(members)
        # in a ring a worker without samples moves as much as the others; a worker that is alone moves nothing
        dense_bytes = self._job.dense.bytes if terms.uses_hub and terms.workers > 1 else 0
        dense = rows_of_dense(dense_bytes, self._job.row_bytes, self._job.dense.state_copies)
        bounds = self._job.dispatch.share_bounds
        is_open = may_choose_ring(self._job, terms.needs, members)
        self.hub_or_ring.start_generation(is_open, is_ring=not terms.uses_hub)
        is_chosen_ring = is_open and not terms.uses_hub
        self._replica_trial.start_generation(is_chosen_ring)
        times = self._ring_times if is_chosen_ring else self._set_times
        elastic = ElasticTerms(bounds, dense, self._choice(bounds, times))
        self._decider = Decider(
            index=self.index,
            directory=directory,
            policy=policy,
            needs=terms.needs,
            row_cost_n=costs.pull_n,
            push_cost_n=costs.push_n,
            elastic=elastic,
            value_share=self._job.rows.shape().value_share,
            admission=self._admission,
            pruner=self.pruner,
            sizes=self._job.row_sizes(self.pruner.state.columns),
            server_cost=self.feedback.server_cost,
        )
        self._decider.may_replicate = self._replica_trial.allows
        return keeps

    def _choice(self, bounds: ShareBounds, times: SetTimes) -> Participation:
        """Returns the method that chooses which members of this generation take part."""
        may_park_n = bounds.of(len(self._members))[0] == 0.0
        match self._job.dispatch.choose:
            case "clock":
                return MeasuredChoice(may_park_n, self.names, times)
            case "model":
                return Participation(may_park_n)
            case "off":
                return Everyone(may_park_n)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of this generation's members, by number."""
        return tuple(member.name for member in self._members)

    def update_links(self, links: Mapping[str, LinkGbit], bounds: ShareBounds) -> None:
        """Uses these link speeds, where given, and these share bounds from the next decision on."""
        self._links = links
        worker_links = [WorkerLink(member.name, *self._link_of(member)) for member in self._members]
        costs = self.feedback.start_generation(worker_links)
        self.decider.charge(costs.pull_n, self.feedback.server_cost, costs.push_n)
        self.decider.bound(bounds)
        self._set_speeds(self._members)

    def _set_speeds(self, members: Iterable[Member]) -> None:
        """Sets the link speeds shown in the status; every member has one from the start, even before it has trained."""
        for member in members:
            link = self._link_of(member)
            self.accounts.set_speeds(
                worker=member.name,
                link_gbit=link.down,
                measured_gbit=self.feedback.measured_gbit(member.name),
                uplink_gbit=link.own_uplink,
                measured_uplink_gbit=self.feedback.measured_uplink_gbit(member.name),
            )

    def _link_of(self, member: Member) -> LinkGbit:
        return self._links.get(member.name, member.link)

    def ordered(self, step: int, decision: Decision) -> None:
        """Records decision time and, if that changed, who is parked and whether rows are replicated from this step."""
        self.accounts.decisions.add(decision.seconds, decision.is_late, decision.is_shortened)
        if decision.hot is not None:
            self._replica_trial.choose(step, decision.hot.size)
        if (change := decision.change) is not None:
            names = [member.name for member in self._members]
            self.accounts.set_parked(change.parked(names))
            expected, before = (None if seconds is None else 1000 * seconds for seconds in change.expected)
            self.accounts.choice = ChoiceStatus(reason=change.reason, expected_ms=expected, before_ms=before)
            self.feedback.forget_busy()
            self._probes.restart()
            self._replica_trial.forget_steps()
            structlog.get_logger().info("other workers take part", **change.facts(names))

    def probes_due(self) -> list[str]:
        """Names of the parked workers whose links are to be measured now."""
        return self._probes.due(self.accounts.parked) if self.feedback.measures_links else []

    def add_probe(self, member: Member, probed: Probed) -> None:
        """Records how fast a worker's link was found to be."""
        is_known = self.feedback.add_probe(member.name, probed)
        self._probes.answered(member.name, is_known)
        self._set_speeds([member])

    def completed(self, members: tuple[Member, ...]) -> Iterator[CompletedRound]:
        """Adds the completed rounds to the accounts and yields them, in the order in which they were ordered."""
        for done in self.underway.completed():
            for number in done.order_bytes:
                self.accounts.add_round(members[number].name, done.traffic(number), done.report(number).seconds)
            figures = self._complete_step(done) if done.is_training else None
            self._set_speeds(members[number] for number in done.order_bytes)
            yield CompletedRound(done, figures)

    def _complete_step(self, done: OrderedRound) -> StepFigures:
        """Learns from a training step's measurements and adds its predictions to the quality; returns its figures."""
        self.feedback.learn(done, self.decider)
        quality = self.accounts.quality
        was_finite = quality.not_finite == 0
        logits_B = done.logits_B()
        loss = quality.add(logits_B, done.labels_B, done.weights_B)
        if done.samples is not None and done.samples.more_labels_BL is not None:
            self.accounts.add_labels(done.more_logits_BL(), done.samples.more_labels_BL, done.weights_B)
        if done.samples is not None:
            self.newest.add(done.samples, logits_B)
            self._measure(done.step, done.samples, logits_B)
        if was_finite and quality.not_finite:
            hint = "predictions are not finite; lower rows.rate, rows.wide_rate or model.dense_rate"
            names = [self._members[worker].name for worker in done.diverged]
            structlog.get_logger().error(hint, step=done.step, workers=names)
        seconds = self.accounts.end_step(done.labels_B.size)
        samples = done.labels_B.size
        self.decider.measure_step(done.step, seconds)
        self._choose_hub_or_ring(done.step, seconds)
        self._try_replicas(done.step, seconds)
        clicks = int(np.count_nonzero(done.labels_B))
        return StepFigures(time(), seconds, done.decide_seconds, samples, clicks, loss, done.moved_bytes())

    def _measure(self, step: int, samples: Samples, logits_B: NDArray[np.float32]) -> None:
        """Adds a step to what is measured over time; nobody waits for it before the next status."""

        def add() -> None:
            self._over_time.add(step, samples, logits_B)
            self._drift.add(step, samples)

        self._measuring.leave(add, len(samples))

    def _choose_hub_or_ring(self, step: int, seconds: float) -> None:
        """Compares the hub with a ring; a change waits for the next generation, which starts at once."""
        change = self.hub_or_ring.measure(seconds, self.decider.is_settled)
        if (hub_seconds := self.hub_or_ring.due_after) is not None:
            change = self.hub_or_ring.consider(self._ring_seconds(hub_seconds))
        if change is not None:
            structlog.get_logger().info("hub or ring", step=step, **change.facts())

    def _try_replicas(self, step: int, seconds: float) -> None:
        """Compares steps with replicated rows and without; what follows waits for the next checkpoint."""
        verdict = self._replica_trial.measure(step, seconds, self.decider.is_settled and self.hub_or_ring.is_confirmed)
        self.decider.may_replicate = self._replica_trial.allows
        if verdict is not None:
            structlog.get_logger().info("replicated rows", step=step, **verdict.facts())

    def _ring_seconds(self, hub_seconds: float) -> float:
        """How long a step should take in a ring, if it takes so long over the hub."""
        expected = self.decider.ring_seconds(hub_seconds)
        if expected is not None:
            return expected
        links = [self._link_of(member).slower or self.feedback.measured_gbit(member.name) for member in self._members]
        return hub_seconds - ring_saves(self._job.dense.bytes, links, self._job.server_gbit)

    def flush_phase(self, step: int) -> int:
        """Returns the phase of the next flush after a step. Each flush at the same step gets its own phase, so that no
        two are the same round.
        """
        times = self._flushed[1] + 1 if self._flushed[0] == step else 0
        self._flushed = step, times
        return FLUSH + times

"""The verbs of the dispatcher's loop (``dispatch/main.py``), over the parts that do the work.

``Intake`` reads the stream, ``RunJournal`` records decisions, ``Crew`` talks to the workers and ``ShardConnections`` to
the parameter server. ``Training`` holds the state that follows from a checkpoint and the steps after it;
``StatusPublisher`` shows it.
"""

from time import monotonic

import msgspec
import structlog

from dispatch.alpha.window import StepSeconds
from dispatch.errors import BadReport, JournalUnwritable, ShardSilent
from dispatch.journal.history import PastGeneration
from dispatch.journal.terms import live_terms, past_terms
from dispatch.parts import DispatcherParts
from dispatch.peers.dismissal import dismiss_first, dismiss_others
from dispatch.peers.losses import silent
from dispatch.peers.orders import flush_orders, training_orders
from dispatch.placement.decide import Decider, Decision
from dispatch.placement.rows.pruning import PruneRound
from dispatch.progress.probes import PROBE_BYTES
from dispatch.progress.setbacks import Setbacks
from dispatch.progress.status import RunState, Status
from dispatch.progress.underway import OrderedRound
from dispatch.protocol import Report
from dispatch.training import Training
from infra.base.faults import reach
from infra.base.trace import traced
from ingest.batches.batch import Batch
from ps.phases import TRAIN
from ps.protocol import EMPTY_MODEL, GO_ON

KEEP_ALIVE_SECONDS = 1.0
"""Time between two keep-alive messages to idle workers. They tell a worker that the dispatcher is alive, and they
reveal a worker that can no longer be reached, which may get no order for a long time.
"""
WAIT_SECONDS = 0.05
"""Longest wait for one message or batch."""
APPLIED_SECONDS = 0.005
"""Pause before shards are asked again whether they have applied a round."""
CHECKPOINT_SECONDS = 10.0
"""Time that a checkpoint may take before rounds of pruning no longer wait for its end."""
PAUSE_SECONDS = 0.5
"""Pause before the journal is tried again."""


class Coordinator:
    """The actions of the dispatcher, one method each: those of its loop, and those that recovery needs."""

    def __init__(self, parts: DispatcherParts) -> None:
        self.parts = parts
        self.job = parts.job
        self.stop = parts.stop
        self.meter = parts.meter
        self.journal = parts.journal
        self.intake = parts.intake
        self.checkpointing = parts.checkpointing
        self.crew = parts.crew
        self.connections = parts.connections
        self.commands = parts.commands
        self.steering = parts.steering
        self.snapshots = parts.snapshots
        self.publisher = parts.publisher
        self.log = structlog.get_logger()
        self.state: RunState = "waiting"
        self.training = Training(parts.job, parts.steering.needs)
        """State that follows from the checkpoint that the run went back to and from the steps after it."""
        self.restore = EMPTY_MODEL
        """The checkpoint that shards load when the next generation starts; GO_ON if they keep what they have."""
        self.setbacks = Setbacks()
        self._kept_alive = 0.0

    def resume_from(self, restore: int, training: Training) -> None:
        """Sets the checkpoint that the next generation starts from, and the state that follows from it."""
        self.restore = restore
        self.training = training

    # ── questions ─────────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def step(self) -> int:
        """Number of the newest step."""
        return self.intake.step

    @property
    def is_paused(self) -> bool:
        """Whether an operator has paused the run."""
        return self.commands.desired.is_paused

    def goes_on(self) -> bool:
        """Whether there may be more to train than the journal holds.

        True as well at the end of the stream while there are no members: a generation must start, so that somebody can
        save the trained dense weights.
        """
        has_more = not self.intake.has_ended or (self.intake.step > 0 and not self.crew.roster.members)
        return self.job.golden is None and not self.stop.requested and has_more

    def needs_generation(self) -> bool:
        """Whether the next step needs another generation: for other members, for another kind of policy, or to sum
        gradients another way.
        """
        is_other_crew = self.crew.roster.has_changed or self.steering.needs_generation(self.commands.desired)
        return is_other_crew or self.training.hub_or_ring.has_changed

    def can_decide(self) -> bool:
        """Whether the desired policy can decide now; if it cannot, its kernels are being compiled."""
        return self.steering.can_decide(self.commands.desired)

    # ── once in a while ───────────────────────────────────────────────────────────────────────────────────────────────
    @traced
    def poll(self, timeout_seconds: float = 0.0) -> bool:
        """Receives the workers' messages, completes reported steps, carries out commands, sends keep-alives and
        publishes the status.

        Returns whether a report arrived. Raises CrewFailed if a process is lost.
        """
        has_report = self._receive(timeout_seconds)
        while self._receive(0.0):
            has_report = True
        self._complete_reported()
        self.snapshots.advance(self.connections, self.crew.generation)
        if self.job.golden is None:
            # The journal is ahead of the intake while recorded steps are trained again.
            newest = max(self.intake.step, self.journal.history.step)
            self.commands.carry_out_arrived(newest, self.training.accounts.parked)
        self._probe_idle()
        self.look_around()
        if self.crew.roster.members and not self.crew.roster.wanted:
            self.stop.request("the last worker left")
        if self.publisher.is_due:
            self.publisher.publish(self.status())
        return has_report

    def look_around(self) -> None:
        """Sends keep-alives; raises CrewFailed if a process is lost."""
        if monotonic() - self._kept_alive > min(KEEP_ALIVE_SECONDS, self.crew.silence_seconds / 4):
            self._kept_alive = monotonic()
            self.crew.keep_alive(self.intake.step)
        self.crew.check(self.training.underway)

    def start_generation(self, past: PastGeneration | None = None) -> Decider:
        """Fixes membership until the next generation. Every row is clean, and members that stay keep their caches.

        past: the recorded generation whose steps are about to be trained again; None for new steps.
        """
        roster = self.crew.roster
        roster.most = None if past is None else len(past.record.members)
        if past is None:
            is_resumed = self.state not in ("training", "paused")
            has_other_policy = self.steering.needs_generation(self.commands.desired)
            reason = self.journal.reason_to_start(is_resumed, roster.has_changed, has_other_policy)
            self.steering.start_generation(self.commands.desired)
            in_ring = self.training.hub_or_ring.is_ring
            terms = live_terms(self.job, self.steering.needs, roster.wanted, reason, in_ring)
        else:
            terms = past_terms(self.job, past)
        if self.journal.history.begun is None and not self.journal.generation:
            self.checkpointing.keep_events(self.intake.start or {})
        started = self.journal.start_generation(roster.wanted, self.intake.start, terms, self.restore)
        self.commands.start_generation(started)
        masks_R = self.connections.open(
            generation=self.journal.generation,
            step=self.intake.step,
            workers=terms.workers,
            restore=self.restore,
            rows=self.training.index.count,
            while_waiting=self.look_around,
        )
        self.snapshots.start_generation(self.connections)
        takes_dense = self.training.dense.start_generation(terms.workers, terms.uses_hub)
        keeps = self.training.start_generation(
            terms, roster.wanted, self.steering.policy, masks_R if self.job.rows.chunks else None
        )
        welcome = {
            "cache_rows": terms.cache_rows,
            "uses_hub": terms.uses_hub,
            "takes_dense": takes_dense,
            "starts_anew": self.restore == EMPTY_MODEL,
            "shards": self.connections.endpoints,
        }
        self.crew.start_generation(self.journal.generation, self.intake.step, welcome, keeps)
        if self.restore != GO_ON:
            self.checkpointing.sweep()
        self.restore = GO_ON
        self.setbacks.stalled = ""
        self.setbacks.waits = 0
        self.state = "training" if past is None else "replaying"
        if past is None:
            self.steering.apply_desired(self.training, self.intake)
            self.steering.pilot.train_with(member.place for member in roster.members)
            self.commands.go_live()
        facts = {"generation": self.crew.generation, "step": self.intake.step, "hub": terms.uses_hub}
        names = [member.name for member in roster.members]
        self.log.info("generation started", reason=terms.reason, workers=names, caches_kept=sum(keeps), **facts)
        return self.training.decider

    def checkpoint_if_due(self, decider: Decider) -> None:
        """Begins a checkpoint if one is due or requested; training continues meanwhile."""
        step = self.intake.step
        is_wanted = self.commands.targets.wants_checkpoint or self.commands.desired.is_paused
        is_time = self.checkpointing.is_due(step) or (is_wanted and self.checkpointing.may_begin(step))
        is_publication = not is_time and self.checkpointing.is_publication_due(step)
        if (is_time or is_publication) and (checkpoint := self._begin_checkpoint(is_publication)):
            self._order_flush(decider, checkpoint)

    def prune_if_due(self, decider: Decider) -> None:
        """Prunes chunks of rows, if that is due before the next step; later if storage does not end a checkpoint.

        No checkpoint may begin until that step is recorded, and with it what was pruned.
        """
        pruner = self.training.pruner
        if pruner.is_due(self.intake.step) and self._await_checkpoint(CHECKPOINT_SECONDS):
            pruner.unrecorded = self.prune(decider)

    def prune(self, decider: Decider, recorded: PruneRound | None = None) -> PruneRound:
        """Prunes chunks of rows after the newest step; returns how. recorded: how it was done before."""
        began = monotonic()
        self._write_back(decider)
        shards = self.connections.shards
        pruner = self.training.pruner
        step = self.intake.step
        is_dropping = recorded is None and pruner.terms.drops_columns
        counts, weights_D = shards.count_chunks(self.crew.generation, step, is_dropping)
        counts_LKN = counts.reshape(2, pruner.terms.chunks, -1)
        done = recorded or pruner.plan(step, counts_LKN, weights_D)
        result = shards.prune(self.crew.generation, step, done)
        decider.reshape(result.rows, result.masks)
        if done.halvings or done.columns:  # every row is another one now
            decider.drop_copies()
        pruner.end_round(step, done, int(counts_LKN[1].sum()), result.pruned, result.brought_back)
        if done.columns:
            decider.use_sizes(self.job.row_sizes(done.columns))
            self.log.info("columns of rows dropped", step=step, kept=list(done.columns), of=self.job.rows.dim)
        facts = {"pruned": result.pruned, "brought_back": result.brought_back, "live": pruner.state.live}
        self.log.info("chunks of rows pruned", step=step, seconds=round(monotonic() - began, 4), **facts)
        reach("pruned", step)
        return done

    def _await_checkpoint(self, seconds: float) -> bool:
        """Waits until no checkpoint is being taken; returns False if one has taken longer than that."""
        while self.checkpointing.is_underway:
            if self.checkpointing.underway_seconds > seconds:
                return False
            self.poll(WAIT_SECONDS)
        return True

    def _write_back(self, decider: Decider) -> None:
        """Writes every row back, without a checkpoint, and waits until the shards have them."""
        self.complete(keep=0)
        step = self.intake.step
        phase = self._order_flush(decider, checkpoint=0)
        self.complete(keep=0)
        self._await_applied(step, phase)

    def rest(self, decider: Decider) -> None:
        """Completes the steps under way and waits a little, because the run is paused."""
        self.complete(keep=0)
        if self.state != "paused":
            self.state = "paused"
            self.log.info("paused", step=self.intake.step)
        self.poll(WAIT_SECONDS)
        if not self.commands.desired.is_paused:
            self.state = "training"
            self.log.info("goes on", step=self.intake.step)

    def flush(self, decider: Decider) -> None:
        """Writes every owned or split row back; afterwards the parameter server has the newest value of every row and
        dense weight.

        Also takes a checkpoint, so that a recovery never crosses a change of members.
        """
        while self.checkpointing.is_underway:
            self.poll(WAIT_SECONDS)
        step = self.intake.step
        may_checkpoint = self.state != "replaying" and self.checkpointing.may_begin(self.intake.step)
        phase = self._order_flush(decider, self._begin_checkpoint() if may_checkpoint else 0)
        self.complete(keep=0)
        self._await_applied(step, phase)
        while self.checkpointing.is_underway:
            self.poll(WAIT_SECONDS)
        self.crew.keep_alive(step)  # notices newcomers that have gone, so that they are not in the next generation
        self.poll()

    def finish(self) -> Status:
        """Dismisses all workers; the first member saves the dense weights before the others go.

        If the stream has ended, the run is over. A run that was stopped continues when it is started again.
        """
        limit = self.job.dispatch.drain_seconds
        reason = self.stop.reason or "end of stream"
        members = self.crew.roster.members
        digest = self.connections.shards.digest(self.journal.generation) if members else ""
        if not dismiss_first(self.crew, self.intake.step, limit):
            hint = "dense weights not saved in time; see the worker's log"
            self.log.error(hint, worker=members[0].name, seconds=limit)
        elif members:  # without members the run has not begun, and may begin another time
            is_over = self.intake.has_ended or not self.stop.requested
            write_down = self.journal.end if is_over else self.journal.stop
            write_down(reason, self.intake.step, self.training.index.count, digest)
            if is_over:
                self.checkpointing.forget_events()
        else:
            self.commands.settle_stop(self.intake.step)
        dismiss_others(self.crew, self.intake.step)
        self.state = "done"
        self.publisher.publish(self.status())
        self.log.info("finished", reason=reason, steps=self.training.accounts.times.steps)
        return self.status()

    # ── every step ────────────────────────────────────────────────────────────────────────────────────────────────────
    @traced
    def next_batch(self) -> Batch | None:
        """Returns the next batch of the stream; None if there is none within a short time."""
        return self.intake.next_batch(WAIT_SECONDS)

    def steer(self) -> None:
        """Applies settings that operators changed since the last step, and those that the dispatcher adapts itself."""
        self.steering.steer(self.commands, self.training, self.intake)

    @traced
    def decide(self, decider: Decider, batch: Batch) -> Decision | None:
        """Decides which worker trains which sample in the next step; returns None if the batch has no samples."""
        if not len(batch.samples):
            return None
        feedback = self.training.feedback
        decider.write_behind(self.checkpointing.is_near)
        decision = decider.decide(
            step=self.intake.step + 1,
            keys=batch.keys,
            budget_seconds=feedback.budget_seconds,
            late_seconds=feedback.late_seconds,
            forget_before=self.training.expiry.forget_before(self.intake.step + 1, self.intake.newest_event_seconds),
        )
        self.steering.note(decision, StepSeconds(feedback.busy_seconds, feedback.rows_seconds))
        return decision

    @traced
    def record(self, batch: Batch, decision: Decision | None) -> None:
        """Assigns the batch its step number and records batch and decision durably.

        Training pauses while the disk has no room for that.
        """
        training = self.training
        is_told = False
        while True:
            try:
                self.intake.record(
                    batch=batch,
                    generation=self.crew.generation,
                    decision=decision,
                    alpha=training.decider.alpha,
                    rows=training.index.count,
                    pruned=training.pruner.unrecorded,
                )
                training.pruner.unrecorded = None
                self.setbacks.stalled = ""
                return
            except JournalUnwritable as error:
                if self.stop.requested:
                    raise
                if not is_told:
                    self.log.error("training pauses until the journal can be written", reason=str(error))
                is_told = True
                self.setbacks.stalled = f"training waits until the journal can be written: {error}"
            self.poll(PAUSE_SECONDS)

    def write_dead_letters(self, batch: Batch) -> None:
        """Writes the batch's rejected events and returns once they are durable.

        Keeps in touch with the workers while the broker that stores them is unreachable.
        """
        if batch.dead_letters:
            while not self.intake.write_dead_letters(batch, self.stop):
                self.poll(WAIT_SECONDS)

    @traced
    def announce(self, step: int, decision: Decision) -> None:
        """Announces to every shard which rows and dense gradients the step will bring."""
        training = self.training
        training.accounts.times.begin(idle=not training.underway)
        training.dense_moves = training.dense.train(decision.plan.samples, decision.sole)
        self.connections.shards.announce_step(
            self.crew.generation,
            step,
            decision.plan,
            decision.rows,
            training.dense_moves,
            decision.forgotten,
            decision.bare,
        )

    @traced
    def order(self, step: int, decision: Decision, batch: Batch) -> None:
        """Sends its part of the step to every worker that has something to do."""
        plan = decision.plan
        dense = self.training.dense_moves
        samples = batch.samples
        pruner = self.training.pruner
        terms = (pruner.weight(step), pruner.state.columns)
        order_bytes = self.crew.order(training_orders(self.crew.at(step), plan.workers, samples, dense, *terms))
        self.training.underway.add(
            OrderedRound(
                step=step,
                phase=TRAIN,
                plan=plan,
                labels_B=samples.labels_B,
                weights_B=samples.weights_B,
                dense=dense,
                order_bytes=order_bytes,
                decide_seconds=decision.seconds,
                samples=samples,
            )
        )
        self.training.ordered(step, decision)
        self.meter.observe("decide", decision.seconds)
        self.meter.count("deadline_misses", int(decision.is_late))
        self.meter.count("decisions_shortened", int(decision.is_shortened))

    @traced
    def complete(self, keep: int) -> None:
        """Waits until at most ``keep`` ordered rounds are under way."""
        if self.stop.requested and self.state == "training":
            self.state = "draining"
        reported = monotonic()
        underway = self.training.underway
        while len(underway) > keep:
            if self.poll(0.0 if underway.oldest.is_reported else WAIT_SECONDS):
                reported = monotonic()
            if monotonic() - reported > self._patience_seconds:
                blamed = self.crew.losses.blamed(underway.oldest.missing)
                names = [self.crew.roster.members[number].name for number in blamed]
                raise silent(names, self._patience_seconds)

    def status(self) -> Status:
        intake = self.intake
        accounts = self.training.accounts
        known = accounts.status(self.state, self.crew.generation, intake.step, intake.events(), intake.fields())
        troubles = tuple(filter(None, (self.setbacks.stalled, self.checkpointing.trouble)))
        served = self.snapshots.status()
        training = self.training
        counts = {"keys": training.keys, "chunks": training.chunks}
        over_time, drift = training.measured_over_time()
        measured = {"over_time": over_time, "drift": drift}
        status = msgspec.structs.replace(known, served=served, troubles=troubles, **counts, **measured)
        return self.steering.describe(status, self.commands.desired, self.training.names, self.journal.cursor)

    # ── inside ────────────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def _patience_seconds(self) -> float:
        """How long workers may take before they count as lost."""
        return self.job.dispatch.drain_seconds if self.stop.requested else self.job.dispatch.report_seconds

    def _await_applied(self, step: int, phase: int) -> None:
        """Waits until the shards have every push of a round, and handles everybody's messages meanwhile."""
        since = monotonic()
        while not self.connections.shards.have_applied(self.crew.generation, step, phase):
            self.poll(APPLIED_SECONDS)
            if monotonic() - since > self._patience_seconds:
                raise ShardSilent(
                    f"rows that workers wrote back had not all arrived after {self._patience_seconds:g} s; expected "
                    "every push of a reported round; see whether workers reach the shards, and raise "
                    f"dispatch.{'drain' if self.stop.requested else 'report'}_seconds if links are that slow"
                )

    def _probe_idle(self) -> None:
        """Has the links of workers without samples measured, if link costs are."""
        members = self.crew.roster.members
        for probed in self.crew.probed:
            self.training.add_probe(members[probed.worker], probed)
        self.crew.probed.clear()
        if self.state == "training" and (names := self.training.probes_due()):
            self.crew.probe(names, self.intake.step, PROBE_BYTES)

    def _begin_checkpoint(self, is_publication: bool = False) -> int:
        decisions = self.training.accounts.decisions.save()
        decided = self.intake.decided(
            generation=self.crew.generation,
            rows=self.training.index.count,
            keys=self.training.keys,
            expiry=self.training.expiry.times,
            pruner=self.training.pruner if self.job.rows.chunks else None,
            decisions=decisions,
            answers=self.commands.answers,
            desired=self.commands.desired,
        )
        self.commands.targets.wants_checkpoint = False
        return self.checkpointing.begin(decided, is_publication)

    def _order_flush(self, decider: Decider, checkpoint: int) -> int:
        """Announces and orders a flush after the newest step; returns its phase.

        checkpoint: number of the checkpoint that the flush is part of; 0 for none.
        """
        plan = decider.flush()
        step = self.intake.step
        dense = self.training.dense.flush()
        phase = self.training.flush_phase(step)
        self.connections.shards.announce_flush(self.crew.generation, (step, phase), plan, dense, checkpoint)
        order_bytes = self.crew.order(flush_orders(self.crew.at(step), phase, plan.workers, dense))
        self.training.underway.add(
            OrderedRound(step, phase, plan, dense=dense, order_bytes=order_bytes, checkpoint=checkpoint)
        )
        return phase

    def _receive(self, timeout_seconds: float) -> bool:
        """Receives one message from the workers; returns whether it was a report."""
        received = self.crew.listen(timeout_seconds)
        if received is None:
            return False
        sender = self.crew.roster.members[received.report.worker]
        try:
            self.training.underway.add_report(sender.name, received)
        except BadReport as error:
            self.crew.refuse(sender.identity, Report.__name__, str(error))
            raise
        return True

    def _complete_reported(self) -> None:
        """Adds the completed rounds to the accounts, in the order in which they were ordered."""
        for done, figures in self.training.completed(self.crew.roster.members):
            if done.is_training:
                self.journal.complete(done.step, done.logits_B(), figures)
                # Only a new step ends a series of faults: replayed steps may succeed before the same fault each time.
                self.setbacks.faults = 0 if self.state == "training" else self.setbacks.faults
                self.meter.count("samples", done.labels_B.size)
                self.meter.count("steps")
            elif done.checkpoint:
                reference = self.snapshots.ask(self.training.newest.take_all())
                self.checkpointing.add_state(self.training.trained(), reference)

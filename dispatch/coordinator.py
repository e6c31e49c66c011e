"""The verbs of the dispatcher's loop (``dispatch/main.py``), over the parts that do the work.

Stream in: ``Intake``. What was decided: ``RunJournal``. Workers: ``Crew``. Parameter server: ``Shards``. Rounds on
their way: ``RoundsUnderway``. What they teach: ``Feedback``. What they add up to: ``Accounts``, shown by
``StatusPublisher``.
"""

from contextlib import ExitStack
from time import monotonic

import numpy as np
import structlog
import zmq

from dispatch.capacity.participation import rows_of_dense
from dispatch.crew import Crew, silent
from dispatch.decide import Decider, Decision, check_cache, needed_rows
from dispatch.dense import NO_MOVES, DenseTurns, check_reduce, needs_ring
from dispatch.errors import BadReport, ShardRefused
from dispatch.intake import Intake
from dispatch.job import DispatchJob
from dispatch.journal.digest import digest_rows
from dispatch.journal.history import PastGeneration
from dispatch.journal.run import RunJournal
from dispatch.journal.terms import live_terms, past_terms
from dispatch.policies.registry import parse_spec
from dispatch.progress.accounts import Accounts
from dispatch.progress.feedback import Feedback, WorkerLink
from dispatch.progress.publisher import StatusPublisher
from dispatch.progress.status import RunState, Status
from dispatch.progress.underway import OrderedRound, RoundsUnderway
from dispatch.protocol import Report, unencrypted
from dispatch.rows.directory import Directory
from dispatch.rows.hot import check_hot_set
from dispatch.rows.index import Index
from dispatch.shards import Shards
from infra.process import Stop
from infra.telemetry import Meter, Refusals
from infra.wire import guarded
from ingest.batches.batch import Batch
from ingest.letters.letter import DeadLetters
from ingest.streams.source import Source
from ps.protocol import FLUSH, TRAIN

KEEP_ALIVE_SECONDS = 5.0
"""between two messages that tell idle workers that the dispatcher is still there"""
WAIT_SECONDS = 0.05
"""longest wait for one message or batch"""


class Coordinator:
    """The dispatcher's resources, and the verbs of its loop."""

    def __init__(
        self, job: DispatchJob, source: Source, letters: DeadLetters, stop: Stop, meter: Meter, resources: ExitStack
    ) -> None:
        self.job, self.stop, self.meter = job, stop, meter
        self.log = structlog.get_logger()
        self.state: RunState = "waiting"
        spec = parse_spec(job.dispatch.policy)
        self.policy, self.needs = spec.build(job.seed, job.dispatch.opt_backend), spec.needs
        shares = job.dispatch.share_bounds if self.needs.elastic else None
        job.dispatch.check_parking()
        check_cache(job.dispatch.cache_rows, job.stream.batch, job.dispatch.workers, job.schema.fields, shares)
        has_hot_set = self.needs.hot_share > 0
        check_reduce(job.reduce, job.dispatch.policy, has_hot_set)
        may_join = job.may_sum or not needs_ring(job.reduce, has_hot_set)
        if job.dispatch.workers > 1 and not may_join:
            raise unencrypted(job.dispatch.workers)
        needed = needed_rows(job.stream.batch, job.dispatch.workers, job.schema.fields)
        check_hot_set(self.needs.hot_share, job.dispatch.cache_rows, needed)
        self.index = Index()
        self.accounts = Accounts(job.run, job.dispatch.policy, job.mark_at)
        self.feedback = Feedback(job.dispatch, self.needs.elastic, job.row_bytes)
        self.underway = RoundsUnderway()
        self.journal = RunJournal(job)
        resources.callback(self.journal.close)
        self.intake = Intake(job, self.journal, source, letters, meter)
        resources.callback(self.intake.close)
        context: zmq.Context[zmq.Socket[bytes]] = resources.enter_context(zmq.Context())
        resources.enter_context(guarded(context, job.curve))
        rules = (job.dispatch.silence_seconds, job.agreement.workers, may_join)
        self.crew = Crew(context, job.dispatch.endpoint, job.run, job.curve, Refusals(meter), *rules)
        resources.callback(self.crew.close)
        self.crew.generation = self.journal.generation
        self.shards = Shards(context, job.shard_endpoints, job.run, job.curve, settings=job.agreement.shards)
        resources.callback(self.shards.close)
        self.publisher = StatusPublisher(context, job.dispatch.status_endpoint, job.curve, meter)
        resources.callback(self.publisher.close)
        self.dense, self._dense_moves = DenseTurns(), NO_MOVES
        self._decider: Decider | None = None
        self._kept_alive = 0.0

    def goes_on(self) -> bool:
        """Whether there may be more to train than what is on record."""
        return self.job.golden is None and not self.stop.requested and not self.intake.has_ended

    # ── once in a while ───────────────────────────────────────────────────────────────────────────────────────────────
    def gather(self, workers: int) -> None:
        """Waits until so many workers have joined, and are still there; a new run also for where its stream begins."""
        while not self.stop.requested:
            is_known = self.journal.history.begun is not None or self.intake.start is not None
            if is_known and len(self.crew.roster.able) >= workers:
                self.crew.keep_alive(self.intake.step)
                if len(self.crew.roster.able) >= workers:
                    return
            self.poll(WAIT_SECONDS)

    def poll(self, timeout_seconds: float = 0.0) -> bool:
        """Takes the workers' messages, completes reported steps, sends keep-alives and publishes the status.

        Returns whether a report arrived.
        """
        has_report = self._receive(timeout_seconds)
        while self._receive(0.0):
            has_report = True
        self._complete_reported()
        self.shards.check()
        self.crew.check()
        if self.crew.roster.members and not self.crew.roster.wanted:
            self.stop.request("the last worker left")
        if monotonic() - self._kept_alive > min(KEEP_ALIVE_SECONDS, self.crew.silence_seconds / 4):
            self._kept_alive = monotonic()
            self.crew.keep_alive(self.intake.step)
        if self.publisher.is_due:
            self.publisher.publish(self.status())
        return has_report

    def start_generation(self, past: PastGeneration | None = None) -> Decider:
        """Fixes membership until the next generation; every cache starts empty, every row clean.

        past: one whose steps are about to be trained again.
        """
        roster = self.crew.roster
        roster.most = None if past is None else len(past.record.members)
        if past is None:
            reason = self.journal.reason_to_start(is_resumed=self.state != "training")
            terms = live_terms(self.job, self.needs, roster.wanted, reason)
        else:
            terms = past_terms(self.job, past)
        self.journal.start_generation(roster.wanted, self.intake.start, terms)
        step, workers = self.intake.step, terms.workers
        takes_dense = self.dense.start_generation(workers, terms.uses_hub)
        self.shards.open(self.journal.generation, step, workers)
        if not roster.members:
            self._check_fresh()
        self.crew.start_generation(step, terms.cache_rows, terms.uses_hub, takes_dense)
        self.state = "training" if past is None else "replaying"
        members = [WorkerLink(member.name, member.link_gbit) for member in self.crew.roster.members]
        names = [member.name for member in members]
        told = {"generation": self.crew.generation, "step": step, "workers": names, "hub": terms.uses_hub}
        self.log.info("generation started", reason=terms.reason, **told)
        directory = Directory(
            np.full(workers, terms.cache_rows, np.int64),
            self.job.dispatch.eviction,
            len(self.job.shard_endpoints),
            terms.needs.synchronisation,
            terms.replicas,
            self.job.write_behind,
        )
        costs_n = self.feedback.start_generation(members)
        self.accounts.set_parked(())
        # in a ring a worker moves as much without samples, and one that is alone moves nothing
        dense_bytes = self.job.dense_bytes if terms.uses_hub and workers > 1 else 0
        dense = rows_of_dense(dense_bytes, self.job.row_bytes, self.job.dense_state_copies)
        known = self.index, directory, self.policy, terms.needs, costs_n, self.job.dispatch.share_bounds
        self._decider = Decider(*known, self.job.rows.shape().value_share, dense)
        return self._decider

    def flush(self, decider: Decider) -> None:
        """Writes every owned or split row back; afterwards the PS has the newest of every row and dense weight."""
        plan, step, generation = decider.flush(), self.intake.step, self.crew.generation
        dense = self.dense.flush()
        self.shards.announce_flush(generation, step, plan, dense)
        order_bytes = self.crew.order_flush(step, plan.workers, dense)
        self.underway.add(OrderedRound(step, FLUSH, plan, dense=dense, order_bytes=order_bytes))
        self.complete(keep=0)
        self.shards.await_applied(generation, step, FLUSH)
        self.crew.keep_alive(step)  # newcomers that have gone have no part in the next generation
        self.poll()

    def finish(self) -> Status:
        """Dismisses all workers; the first member saves the dense weights before the others go."""
        limit, reason = self.job.dispatch.drain_seconds, self.stop.reason or "end of stream"
        digest = digest_rows(self.job, self.journal.generation, self.index.keys)
        if not self.crew.dismiss_all(self.intake.step, limit):
            first = self.crew.roster.members[0].name
            self.log.error("dense weights not saved in time; see the worker's log", worker=first, seconds=limit)
        elif self.crew.roster.members:  # without any, the run has not begun and may begin another time
            self.journal.end(reason, self.intake.step, self.index.count, digest)
        self.state = "done"
        self.publisher.publish(self.status())
        self.log.info("finished", reason=reason, steps=self.accounts.times.steps)
        return self.status()

    def abandon(self) -> Status:
        """Dismisses all workers before the journal has been replayed; nothing is saved, and nothing is lost."""
        for member in self.crew.roster.everyone:
            self.crew.dismiss(member, self.intake.step, save_dense=False)
        self.log.warning("stopped before the journal was replayed; start again to resume", reason=self.stop.reason)
        return self.status()

    # ── every step ────────────────────────────────────────────────────────────────────────────────────────────────────
    def decide(self, decider: Decider, batch: Batch) -> Decision | None:
        """Which worker trains which sample in the next step; None if the batch has none."""
        if not len(batch.samples):
            return None
        return decider.decide(self.intake.step + 1, batch.samples.keys_BF, self.feedback.budget_seconds)

    def record(self, batch: Batch, decision: Decision | None) -> None:
        """Gives the batch its step, and writes down what was decided about it, durably."""
        assert self._decider is not None
        self.intake.record(batch, self.crew.generation, decision, self._decider.alpha, self.index.count)

    def write_dead_letters(self, batch: Batch) -> None:
        """Returns once they are durable; keeps the workers alive while the broker that takes them is away."""
        if batch.dead_letters:
            while not self.intake.write_dead_letters(batch, self.stop):
                self.poll(WAIT_SECONDS)

    def announce(self, step: int, decision: Decision) -> None:
        """Tells every shard which rows and which dense gradients the step will bring."""
        self.accounts.times.begin(idle=not self.underway)
        self._dense_moves = self.dense.train(decision.plan.samples, decision.sole)
        self.shards.announce_step(self.crew.generation, step, decision.plan, decision.rows, self._dense_moves)

    def order(self, step: int, decision: Decision, batch: Batch) -> None:
        """Sends every worker its part of the step."""
        plan, dense, samples = decision.plan, self._dense_moves, batch.samples
        order_bytes = self.crew.order(step, plan.workers, samples, dense)
        self.underway.add(OrderedRound(step, TRAIN, plan, samples.labels_B, dense, order_bytes))
        self.accounts.decisions.add(decision.seconds, decision.is_late, decision.is_cut)
        self._tell_parked(decision)
        self.meter.observe("decide", decision.seconds)
        self.meter.count("deadline_misses", int(decision.is_late))
        self.meter.count("decisions_cut", int(decision.is_cut))

    def complete(self, keep: int) -> None:
        """Waits until at most so many ordered rounds are under way."""
        if self.stop.requested and self.state == "training":
            self.state = "draining"
        reported = monotonic()
        while len(self.underway) > keep:
            if self.poll(WAIT_SECONDS):
                reported = monotonic()
            limit = self.job.dispatch.drain_seconds if self.stop.requested else self.job.dispatch.report_seconds
            if monotonic() - reported > limit:
                raise silent(self.crew.blamed(self.underway.oldest.missing), limit)

    def status(self) -> Status:
        intake = self.intake
        return self.accounts.status(self.state, self.crew.generation, intake.step, intake.events(), intake.fields())

    # ── inside ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def _check_fresh(self) -> None:
        """Raises ShardRefused if a shard has worked for an earlier dispatcher: its model is not the empty one."""
        ledgers = self.shards.ledgers(self.journal.generation)
        for endpoint, ledger in zip(self.job.shard_endpoints, ledgers, strict=True):
            if ledger.step.size:
                raise ShardRefused(
                    f"shard at {endpoint} holds what an earlier dispatcher trained, up to step {ledger.step.max()}; "
                    "expected one that was started with this dispatcher; start it anew"
                )

    def _receive(self, timeout_seconds: float) -> bool:
        """Takes one message of the workers; returns whether it was a report."""
        received = self.crew.listen(timeout_seconds)
        if received is None:
            return False
        sender = self.crew.roster.members[received.report.worker]
        try:
            self.underway.add_report(sender.name, received)
        except BadReport as error:
            self.crew.refuse(sender.identity, Report.__name__, str(error))
            raise
        return True

    def _tell_parked(self, decision: Decision) -> None:
        """Logs and shows a new set of workers that take part."""
        if (change := decision.change) is not None:
            names = [member.name for member in self.crew.roster.members]
            self.accounts.set_parked(change.parked(names))
            self.log.info("other workers take part", **change.facts(names))

    def _complete_reported(self) -> None:
        """Adds up the rounds that every worker has reported, in the order in which they were ordered."""
        for done in self.underway.completed():
            for number, member in enumerate(self.crew.roster.members):
                self.accounts.add_round(member.name, done.traffic(number), done.report(number).seconds)
            if done.is_training:
                self._complete_step(done)
            for member in self.crew.roster.members:
                self.accounts.set_speeds(member.name, member.link_gbit, self.feedback.measured_gbit(member.name))

    def _complete_step(self, done: OrderedRound) -> None:
        """Takes what a training step teaches and adds its predictions to the quality."""
        assert self._decider is not None
        self.feedback.learn(done, self._decider)
        samples, was_finite = done.labels_B.size, self.accounts.quality.not_finite == 0
        logits_B = done.logits_B()
        self.journal.complete(done.step, logits_B)
        self.accounts.quality.add(logits_B, done.labels_B)
        if was_finite and self.accounts.quality.not_finite:
            hint = "predictions are not finite; lower rows.rate, rows.wide_rate or model.dense_rate"
            self.log.error(
                hint, step=done.step, workers=[self.crew.roster.members[worker].name for worker in done.diverged]
            )
        self.accounts.end_step(samples)
        self.meter.count("samples", samples)
        self.meter.count("steps")

"""The verbs of the dispatcher's loop (``dispatch/main.py``), over the parts that do the work.

Stream in: ``Intake``. Workers: ``Crew``. Parameter server: ``Shards``. Rounds on their way: ``RoundsUnderway``. What
they teach: ``Feedback``. What they add up to: ``Accounts``, shown by ``StatusPublisher``.
"""

from contextlib import ExitStack
from time import monotonic

import numpy as np
import structlog
import zmq

from dispatch.capacity.participation import rows_of_dense
from dispatch.crew import Crew, silent
from dispatch.decide import Decider, Decision, check_cache, needed_rows
from dispatch.dense import NO_MOVES, DenseTurns, check_reduce, needs_ring, uses_hub
from dispatch.errors import BadReport
from dispatch.intake import Intake
from dispatch.job import DispatchJob
from dispatch.policies.registry import parse_spec
from dispatch.progress.accounts import Accounts
from dispatch.progress.feedback import Feedback, WorkerLink
from dispatch.progress.publisher import StatusPublisher
from dispatch.progress.status import RunState, Status
from dispatch.progress.underway import OrderedRound, RoundsUnderway
from dispatch.protocol import Report, unencrypted
from dispatch.rows.directory import Directory
from dispatch.rows.hot import check_hot_set, hot_rows
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
        self.intake = Intake(job, source, letters, meter)
        resources.callback(self.intake.close)
        context: zmq.Context[zmq.Socket[bytes]] = resources.enter_context(zmq.Context())
        resources.enter_context(guarded(context, job.curve))
        rules = (job.dispatch.silence_seconds, job.agreement.workers, may_join)
        self.crew = Crew(context, job.endpoint, job.run, job.curve, Refusals(meter), *rules)
        resources.callback(self.crew.close)
        self.shards = Shards(context, job.shard_endpoints, job.run, job.curve, settings=job.agreement.shards)
        resources.callback(self.shards.close)
        self.publisher = StatusPublisher(context, job.status_endpoint, job.curve, meter)
        resources.callback(self.publisher.close)
        self.dense, self._dense_moves = DenseTurns(), NO_MOVES
        self._decider: Decider | None = None
        self._kept_alive = 0.0

    def goes_on(self) -> bool:
        return not self.stop.requested and not self.intake.has_ended

    # ── once in a while ───────────────────────────────────────────────────────────────────────────────────────────────
    def gather(self) -> None:
        """Waits until as many workers as the settings name have joined, and are still there."""
        while not self.stop.requested:
            if len(self.crew.roster.wanted) >= self.job.dispatch.workers:
                self.crew.keep_alive(self.intake.step)
                if len(self.crew.roster.wanted) >= self.job.dispatch.workers:
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

    def start_generation(self) -> Decider:
        """Fixes membership until the next generation; every cache starts empty, every row clean."""
        dispatch, step = self.job.dispatch, self.intake.step
        workers = len(self.crew.roster.wanted)
        hot = hot_rows(self.needs.hot_share, dispatch.cache_rows)
        needed = hot + needed_rows(self.job.stream.batch, workers, self.job.schema.fields)
        cache_rows = max(dispatch.cache_rows, needed)
        if cache_rows > dispatch.cache_rows:
            self.log.warning("caches enlarged: fewer workers get larger micro-batches", cache_rows=cache_rows)
        devices = [member.device for member in self.crew.roster.wanted]
        hub = uses_hub(self.job.reduce, self.needs.hot_share > 0, self.job.may_sum, devices)
        takes_dense = self.dense.start_generation(workers, hub)
        self.shards.open(self.crew.generation + 1, step, workers)
        self.crew.start_generation(step, cache_rows, hub, takes_dense)
        self.state = "training"
        members = [WorkerLink(member.name, member.link_gbit) for member in self.crew.roster.members]
        names = [member.name for member in members]
        self.log.info("generation started", generation=self.crew.generation, step=step, workers=names, hub=hub)
        directory = Directory(
            np.full(workers, cache_rows, np.int64),
            dispatch.eviction,
            len(self.job.shard_endpoints),
            self.needs.synchronisation,
            hot,
        )
        costs_n = self.feedback.start_generation(members)
        self.accounts.set_parked(())
        # in a ring a worker moves as much without samples, and one that is alone moves nothing
        dense_bytes = self.job.dense_bytes if hub and workers > 1 else 0
        dense = rows_of_dense(dense_bytes, self.job.row_bytes, self.job.dense_state_copies)
        known = self.index, directory, self.policy, self.needs, costs_n, dispatch.share_bounds
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
        limit = self.job.dispatch.drain_seconds
        if not self.crew.dismiss_all(self.intake.step, limit):
            first = self.crew.roster.members[0].name
            self.log.error("dense weights not saved in time; see the worker's log", worker=first, seconds=limit)
        self.state = "done"
        self.publisher.publish(self.status())
        self.log.info("finished", reason=self.stop.reason or "end of stream", steps=self.accounts.times.steps)
        return self.status()

    # ── every step ────────────────────────────────────────────────────────────────────────────────────────────────────
    def next_batch(self) -> Batch | None:
        """The next batch, or None if there is none yet."""
        return self.intake.next_batch(WAIT_SECONDS)

    def append_manifest(self, batch: Batch) -> int:
        """Gives the batch its step, durably."""
        return self.intake.append_manifest(batch, self.crew.generation)

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
        self.accounts.quality.add(done.logits_B(), done.labels_B)
        if was_finite and self.accounts.quality.not_finite:
            hint = "predictions are not finite; lower rows.rate, rows.wide_rate or model.dense_rate"
            self.log.error(
                hint, step=done.step, workers=[self.crew.roster.members[worker].name for worker in done.diverged]
            )
        self.accounts.end_step(samples)
        self.meter.count("samples", samples)
        self.meter.count("steps")

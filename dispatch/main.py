"""The dispatcher: owns the order of steps.

One loop, one step a turn. The order of its lines is the guarantee; a crash of this process costs, after the line

1. manifest appended       nothing: no one has seen the batch, and the manifest says how to form it again
2. dead letters written    nothing: a letter is written once, however often its manifest is replayed
3. decided                 the decision: a pure function of the manifests or, if elastic or cut short, one as good
4. announced, 5. ordered   the steps since the last checkpoint, which are done again from their manifests
6. step completed          the same

The next step is decided while the workers train: at most ``lookahead`` ordered steps wait behind the one in training.
SIGTERM ends the loop: the steps under way are completed, every row is written back, the workers are dismissed.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import msgspec
import numpy as np
import structlog
import zmq
from numpy.typing import NDArray

from dispatch.capacity.link_costs import MeasuredLinks
from dispatch.config import DispatchConfig
from dispatch.crew import Crew, silent
from dispatch.decide import Decider, Decision, check_cache, needed_rows, relative_row_costs, warm_up
from dispatch.errors import RunExists
from dispatch.policies.registry import parse_spec
from dispatch.progress.accounts import Accounts
from dispatch.progress.status import State, Status
from dispatch.protocol import Report
from dispatch.rows.directory import Directory
from dispatch.rows.hot import check_hot_set, hot_rows
from dispatch.rows.index import Index
from dispatch.rows.plan import Traffic, WorkerPlan
from dispatch.shards import Shards
from infra.process import Stop
from infra.telemetry import Meter
from infra.wire import Curve, bind, guarded
from ingest.batches.loader import Batch, Loader
from ingest.batches.manifest import Manifest, ManifestLog, Position
from ingest.config import StreamConfig
from ingest.errors import SinkUnavailable
from ingest.letters.letter import DeadLetter, DeadLetters
from ingest.schema import Schema
from ingest.streams.source import Source
from ps.protocol import FLUSH, TRAIN

STATUS_SECONDS = 0.25
KEEP_ALIVE_SECONDS = 5.0
WAIT_SECONDS = 0.05
COMPUTE_PHASES = ("forward", "backward", "rows")
"""of a report; the others wait for links or for other workers"""
UNSHAPED_GBIT = 10.0
"""what links of unknown speed are taken for"""


@dataclass(frozen=True)
class Job:
    """What the dispatcher works on; everything that files and the environment had to say."""

    run: str
    seed: int
    folder: Path
    stream: StreamConfig
    dispatch: DispatchConfig
    schema: Schema
    shard_endpoints: tuple[str, ...]
    endpoint: str = "tcp://127.0.0.1:*"
    status_endpoint: str = "tcp://127.0.0.1:*"
    samples: int | None = None
    """stop after exactly so many samples"""
    mark_at: int | None = None
    """also measure quality over what comes after so many samples"""
    stop_at_end: bool = False
    """stop where the stream ends now, instead of waiting for more"""
    curve: Curve | None = None
    start: Mapping[int, Position] = field(default_factory=dict)
    """where to begin; empty: at the first record of every partition"""


@dataclass
class Underway:
    """A step that has been ordered and not yet completed."""

    step: int
    phase: int
    plans: tuple[WorkerPlan, ...]
    traffic: Traffic
    labels_B: NDArray[np.float32]
    reports: dict[int, tuple[Report, NDArray[np.float32]]] = field(default_factory=dict)


def run_dispatcher(
    job: Job,
    source: Source,
    letters: DeadLetters,
    stop: Stop,
    on_ready: Callable[[str, str], None],
    meter: Meter,
) -> Status:
    """Trains until a stop is requested or the stream ends; returns the last status."""
    with ExitStack() as resources:
        desk = Desk(job, source, letters, stop, meter, resources)
        warm_up(job.dispatch.policy, job.seed, job.dispatch.opt_backend)
        on_ready(desk.crew.endpoint, desk.status_endpoint)
        desk.gather()
        while desk.goes_on():
            decider = desk.start_generation()
            while desk.goes_on() and not desk.crew.has_changed:
                desk.look_around()
                batch = desk.next_batch()
                if batch is None:
                    continue
                step = desk.append_manifest(batch)  # 1
                desk.write_dead_letters(batch)  # 2
                if not len(batch.samples):
                    continue
                decision = decider.decide(step, batch.samples.keys_BF, desk.budget_seconds())  # 3
                desk.announce(step, decision)  # 4
                desk.order(step, decision, batch)  # 5
                desk.complete(keep=job.dispatch.lookahead)  # 6
            desk.complete(keep=0)
            desk.flush(decider)
        return desk.finish()


class Desk:
    """The dispatcher's resources, and the verbs of its loop."""

    def __init__(
        self, job: Job, source: Source, letters: DeadLetters, stop: Stop, meter: Meter, resources: ExitStack
    ) -> None:
        self.job, self.stop, self.meter = job, stop, meter
        self.index = Index()
        self.accounts = Accounts(job.run, job.dispatch.policy, job.mark_at)
        spec = parse_spec(job.dispatch.policy)
        self.policy, self.needs = spec.build(job.seed, job.dispatch.opt_backend), spec.needs
        self.links = MeasuredLinks()
        self.cache_rows = job.dispatch.cache_rows
        shares = job.dispatch.share_bounds if self.needs.elastic else None
        check_cache(self.cache_rows, job.stream.batch, job.dispatch.workers, job.schema.fields, shares)
        needed = needed_rows(job.stream.batch, job.dispatch.workers, job.schema.fields)
        check_hot_set(self.needs.hot_share, self.cache_rows, needed)
        self.log = structlog.get_logger()
        self.step = 0
        self._manifests = ManifestLog(job.folder / "manifests.log")
        resources.callback(self._manifests.close)
        _check_new_run(self._manifests)
        self._letters = letters
        context: zmq.Context[zmq.Socket[bytes]] = resources.enter_context(zmq.Context())
        resources.enter_context(guarded(context, job.curve))
        self.crew = Crew(context, job.endpoint, job.run, job.curve)
        resources.callback(self.crew.close)
        self.shards = Shards(context, job.shard_endpoints, job.run, job.curve)
        resources.callback(self.shards.close)
        self._publisher = resources.enter_context(context.socket(zmq.PUB))
        self.status_endpoint = bind(self._publisher, job.status_endpoint, job.curve)
        self.loader = open_loader(job, source)
        resources.callback(self.loader.close)
        self._decider: Decider | None = None
        self._underway: deque[Underway] = deque()
        self._published = self._kept_alive = 0.0
        self.state: State = "waiting"

    def goes_on(self) -> bool:
        return not self.stop.requested and not self.loader.ended

    # ── once in a while ───────────────────────────────────────────────────────────────────────────────────────────────
    def gather(self) -> None:
        """Waits until as many workers as the settings name have joined."""
        while len(self.crew.wanted) < self.job.dispatch.workers and not self.stop.requested:
            self.look_around(WAIT_SECONDS)

    def look_around(self, timeout_seconds: float = 0.0) -> bool:
        """Hears who has something to say, tells everyone that we are here; returns whether a report came."""
        heard = self._hear(timeout_seconds)
        while self._hear(0.0):
            heard = True
        self._complete_reported()
        self.shards.check()
        if self.crew.members and not self.crew.wanted:
            self.stop.request("the last worker left")
        if monotonic() - self._kept_alive > KEEP_ALIVE_SECONDS:
            self._kept_alive = monotonic()
            self.crew.keep_alive(self.step)
        self._publish()
        return heard

    def start_generation(self) -> Decider:
        """Membership is fixed from here until the next generation: every cache starts empty, every row clean."""
        workers = len(self.crew.wanted)
        hot = hot_rows(self.needs.hot_share, self.cache_rows)
        cache_rows = max(self.cache_rows, hot + needed_rows(self.job.stream.batch, workers, self.job.schema.fields))
        if cache_rows > self.cache_rows:
            self.log.warning("caches enlarged: fewer workers get larger micro-batches", cache_rows=cache_rows)
        self.shards.open(self.crew.generation + 1, self.step, workers)
        self.crew.start_generation(self.step, cache_rows)
        self.state = "training"
        names = [member.name for member in self.crew.members]
        self.log.info("generation started", generation=self.crew.generation, step=self.step, workers=names)
        directory = Directory(
            np.full(workers, cache_rows, np.int64),
            self.job.dispatch.eviction,
            len(self.job.shard_endpoints),
            self.needs.synchronisation,
            hot,
        )
        costs = relative_row_costs([member.link_gbit for member in self.crew.members])
        if self.measures_links:
            costs = self.links.row_costs(names)
        self._decider = Decider(self.index, directory, self.policy, self.needs, costs, self.job.dispatch.share_bounds)
        return self._decider

    @property
    def measures_links(self) -> bool:
        """Whether links cost what their transfers show, and not what their workers tell."""
        if self.job.dispatch.link_costs != "auto":
            return self.job.dispatch.link_costs == "measured"
        return self.needs.elastic and not any(member.link_gbit for member in self.crew.members)

    def flush(self, decider: Decider) -> None:
        """Every owned or split row is written back; afterwards the PS has the newest value of every row."""
        plan = decider.flush()
        self.shards.announce(self.crew.generation, self.step, FLUSH, plan, None)
        self.crew.order_flush(self.step, plan.workers)
        self._underway.append(Underway(self.step, FLUSH, plan.workers, plan.traffic, np.empty(0, np.float32)))
        self.complete(keep=0)
        self.shards.await_applied(self.crew.generation, self.step, FLUSH, plan)

    def finish(self) -> Status:
        """Everyone goes home; the first member saves the dense weights, which are the same on all."""
        for member in self.crew.everyone:
            self.crew.dismiss(member, self.step, save_dense=self.crew.members[:1] == (member,))
        self.state = "done"
        self._publish(at_once=True)
        self.log.info("finished", reason=self.stop.reason or "end of stream", steps=self.accounts.steps)
        return self.status()

    # ── every step ────────────────────────────────────────────────────────────────────────────────────────────────────
    def next_batch(self) -> Batch | None:
        """The next batch, or None if there is none yet."""
        return self.loader.next(WAIT_SECONDS)

    def append_manifest(self, batch: Batch) -> int:
        """The batch gets its step, durably."""
        self.step += 1
        samples, rejected = len(batch.samples), len(batch.dead_letters)
        run, generation = self.job.run, self.crew.generation
        left_out = batch.skipped, batch.skipped_events
        self._manifests.append(Manifest(run, generation, self.step, batch.ranges, samples, rejected, *left_out))
        if batch.skipped:
            self.accounts.skipped += batch.skipped_events
            self.meter.count("skipped", batch.skipped_events)
            self.log.warning("events left out", events=batch.skipped_events, ranges=len(batch.skipped))
        return self.step

    def write_dead_letters(self, batch: Batch) -> None:
        """Returns once they are durable; while the broker that takes them is away, the workers are kept alive."""
        if batch.dead_letters:
            while not self._appended(batch.dead_letters):
                self.look_around(WAIT_SECONDS)
            self.accounts.dead_letters += len(batch.dead_letters)
            self.meter.count("dead_letters", len(batch.dead_letters))

    def budget_seconds(self) -> float | None:
        """How long the next decision may take; None: as long as it likes."""
        return self.accounts.budget_seconds if self.job.dispatch.deadline else None

    def announce(self, step: int, decision: Decision) -> None:
        self.accounts.begin(idle=not self._underway)
        self.shards.announce(self.crew.generation, step, TRAIN, decision.plan, decision.rows)

    def order(self, step: int, decision: Decision, batch: Batch) -> None:
        self.crew.order(step, decision.plan.workers, batch.samples)
        plan = decision.plan
        self._underway.append(Underway(step, TRAIN, plan.workers, plan.traffic, batch.samples.labels_B))
        self.accounts.add_decision(decision.seconds, decision.is_late, decision.is_cut)
        self.meter.observe("decide", decision.seconds)
        self.meter.count("deadline_misses", int(decision.is_late))
        self.meter.count("decisions_cut", int(decision.is_cut))

    def complete(self, keep: int) -> None:
        """Waits until at most so many ordered steps are under way."""
        if self.stop.requested and self.state == "training":
            self.state = "draining"
        heard = monotonic()
        while len(self._underway) > keep:
            if self.look_around(WAIT_SECONDS):
                heard = monotonic()
            limit = self.job.dispatch.drain_seconds if self.stop.requested else self.job.dispatch.report_seconds
            if monotonic() - heard > limit:
                missing = set(range(len(self.crew.members))) - set(self._underway[0].reports)
                raise silent([self.crew.members[number].name for number in sorted(missing)], limit)

    def status(self) -> Status:
        return self.accounts.status(self.state, self.crew.generation, self.step, self.loader.lag())

    # ── inside ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def _appended(self, letters: Sequence[DeadLetter]) -> bool:
        """Whether they could be written now; a stop does not wait for a broker that is away: a replay writes them."""
        try:
            self._letters.append(letters)
        except SinkUnavailable:
            if self.stop.requested:
                raise
            return False
        return True

    def _hear(self, timeout_seconds: float) -> bool:
        """Takes one message of the workers; reports go to the step they belong to."""
        heard = self.crew.listen(timeout_seconds)
        if heard is None:
            return False
        report, _ = heard
        for underway in self._underway:
            if (underway.step, underway.phase) == (report.step, report.phase):
                underway.reports[report.worker] = heard
        return True

    def _complete_reported(self) -> None:
        """Closes the books of the oldest steps, in order, as far as every worker has reported."""
        while self._underway and len(self._underway[0].reports) == len(self.crew.members):
            done = self._underway.popleft()
            self.accounts.add_traffic(self.crew.members, done.traffic)
            logits_B = np.empty(done.labels_B.size, np.float32)
            for number, (report, logits) in sorted(done.reports.items()):
                use = done.plans[number].use
                self.accounts.add_report(self.crew.members[number], report, logits.size)
                if use is not None:
                    logits_B[use.samples] = logits
            if done.phase == TRAIN:
                self._learn_times(done)
                self._score(done.step, logits_B, done.labels_B)
                self.accounts.end_step(done.labels_B.size)
                self.meter.count("samples", done.labels_B.size)
                self.meter.count("steps")

    def _score(self, step: int, logits_B: NDArray[np.float32], labels_B: NDArray[np.float32]) -> None:
        """Adds the step's predictions to the metrics; a model that has run away is told at once."""
        was_finite = self.accounts.quality.not_finite == 0
        self.accounts.quality.add(logits_B, labels_B)
        if was_finite and self.accounts.quality.not_finite:
            self.log.error("predictions are not finite; lower rows.rate, rows.wide_rate or model.dense_rate", step=step)

    def _learn_times(self, done: Underway) -> None:
        """What the step took: the budget of the next decisions, and what elastic capacities go by."""
        reports = [done.reports[number][0] for number in range(len(self.crew.members))]
        self.accounts.add_busy(max(sum(report.seconds.values()) for report in reports))
        fastest = self._learn_links(reports) or UNSHAPED_GBIT
        for report, plan in zip(reports, done.plans, strict=True):
            assert self._decider is not None
            assert plan.use is not None
            compute = sum(report.seconds.get(phase, 0.0) for phase in COMPUTE_PHASES)
            row_bytes = (report.pulled_bytes + report.pushed_bytes) / max(plan.rows_moved, 1)
            row_seconds = row_bytes * 8 / (fastest * 1e9)
            self._decider.measure(report.worker, plan.use.samples.size, compute, row_seconds)

    def _learn_links(self, reports: list[Report]) -> float:
        """Adds what the links carried; returns the speed of the fastest, as configured or measured, 0 if not known."""
        names = [member.name for member in self.crew.members]
        for member, report in zip(self.crew.members, reports, strict=True):
            link = self.links.of(member.name)
            link.add(report.link_bytes, report.link_seconds)
            self.accounts.add_speed(member, link.gbit)
        if not self.measures_links:
            return max(member.link_gbit for member in self.crew.members)
        assert self._decider is not None
        self._decider.charge(self.links.row_costs(names))
        return self.links.fastest_gbit(names)

    def _publish(self, at_once: bool = False) -> None:
        if at_once or monotonic() - self._published > STATUS_SECONDS:
            self._published = monotonic()
            status = self.status()
            self._publisher.send(msgspec.json.encode(status))
            for name in ("lag", "generation", "samples_per_second", "logloss", "auc", "calibration", "not_finite"):
                value = getattr(status, name)
                if value is not None:
                    self.meter.gauge(name, value)
            for worker in status.workers:
                if worker.measured_gbit is not None:
                    self.meter.gauge("link_gbit", worker.measured_gbit, worker=worker.name)


def open_loader(job: Job, source: Source) -> Loader:
    return Loader(
        source,
        job.schema,
        job.stream.batch,
        start=job.start,
        linger_seconds=job.stream.linger_seconds,
        prefetch=job.stream.prefetch,
        limit=job.samples,
        stop_at_end=job.stop_at_end,
        read_bytes=job.stream.read_bytes,
        on_out_of_range=job.stream.on_out_of_range,
        skip_above=job.stream.skip_above,
    )


def _check_new_run(manifests: ManifestLog) -> None:
    if manifests.last is not None:
        raise RunExists(
            f"{manifests.path} already holds {manifests.last.step} steps of run {manifests.last.run!r}; a run without "
            "a checkpoint cannot be continued: give this one another folder with --folder or FRESHET_FOLDER"
        )

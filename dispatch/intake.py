"""The dispatcher's side of the stream: it forms batches and records each one before anyone trains on it.

A batch is recorded durably together with its decision, and its dead letters are written only after that. A crash in
between loses nothing: the record says how to form the batch again, and a dead letter is written once, however often the
batch is formed.

A resumed run first forms the batches of its journal again; the loader starts after them.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import sleep

import structlog
from msgspec import UNSET

from dispatch.checkpoints.state import Decided
from dispatch.commands.desired import Desired
from dispatch.errors import OtherEvents
from dispatch.job import DispatchJob
from dispatch.journal.answers import CommandAnswer
from dispatch.journal.history import History, advance
from dispatch.journal.records import StepDecided, pack_assignment
from dispatch.journal.run import RunJournal
from dispatch.placement.decide import Decision
from dispatch.placement.rows.expiry import StepTime
from dispatch.placement.rows.pruning import Pruner, PruneRound
from dispatch.progress.freshness import Freshness, newest_event_time
from dispatch.progress.status import EventCounts, FieldsStatus, KeyCounts
from dispatch.progress.times import DecisionTimesState
from infra.base.process import Stop
from infra.base.telemetry import Meter
from ingest.batches.absent import FieldWatch
from ingest.batches.batch import Batch
from ingest.batches.job import LoaderJob
from ingest.batches.loader import BatchLoader, Loader
from ingest.batches.manifest import Manifest
from ingest.batches.replay import GoesOn, form_batch
from ingest.errors import SinkUnavailable, SourceUnavailable
from ingest.letters.letter import DeadLetter, DeadLetters
from ingest.streams.position import Position
from ingest.streams.source import Source

OpenLoader = Callable[[LoaderJob], BatchLoader]


class Intake:
    """Batches of the stream in order, their records and their dead letters."""

    def __init__(
        self,
        job: DispatchJob,
        journal: RunJournal,
        source: Source,
        letters: DeadLetters,
        meter: Meter,
        loading: OpenLoader | None = None,
    ) -> None:
        """source: of the batches that are formed again, and of new ones if ``loading`` opens no other loader."""
        self.step = 0
        """Number of the newest step."""
        self._samples = self._dead_letters = self._skipped = self._omitted = 0
        self.freshness = Freshness(self._clock)
        self.newest_event_seconds = 0.0
        """Event time of the newest sample that is not dated in the future; 0: not known."""
        self._positions: dict[int, Position] = {}
        """Position after the newest step in every known partition."""
        self._last_letters: tuple[DeadLetter, ...] = ()
        """Dead letters of the newest recorded step; those of earlier steps are known to be written."""
        self._job = job
        self._journal = journal
        self._source = source
        self._letters = letters
        self._meter = meter
        self._log = structlog.get_logger()
        self._watch = FieldWatch(job.schema, job.stream.absent_window, job.stream.on_absent_field)
        self._open_loader = loading or partial(Loader, source)
        self._loader = self._load() if journal.history.begun is None else None
        self._taken: Batch | None = None
        """The batch of the loader that was handed out and is not recorded yet; a recovery must not lose it."""
        self._again: deque[Manifest] = deque()
        """Manifests of void steps that are not recorded again yet; their batches are handed out before new ones."""
        self._formed: Batch | None = None
        """The batch of the first of them, if it has been formed."""

    @property
    def start(self) -> dict[int, Position] | None:
        """Where a new run begins to read; None while that is not known."""
        return None if self._loader is None else self._loader.start

    @property
    def has_ended(self) -> bool:
        """Whether the last batch has been handed out."""
        return self._loader is not None and self._loader.ended and self._taken is None and not self._again

    def skip_above(self, events: int | None) -> None:
        """From the next batch on, skips all but the newest events when more than this many are waiting; None: never."""
        if self._loader is not None:
            self._loader.skip_above(events)

    def events(self) -> EventCounts:
        """Counts the events that were not trained."""
        lag = 0 if self._loader is None else self._loader.lag()
        return EventCounts(lag=lag, dead_letters=self._dead_letters, skipped=self._skipped, omitted=self._omitted)

    def fields(self) -> FieldsStatus:
        """Returns which fields were present in the events handed out."""
        absence = self._watch.absence
        return FieldsStatus(present=self._watch.shares(), absent=absence.fields, unknown=absence.unknown)

    def next_batch(self, timeout_seconds: float) -> Batch | None:
        """Returns the next batch, or None if there is none yet.

        Raises AbsentField if its events lack a field and the settings say to stop then.
        """
        assert self._loader is not None, "the journal has not been replayed"
        if self._again:
            return self._form_first_again(timeout_seconds)
        if self._taken is None and (batch := self._loader.next(timeout_seconds)) is not None:
            self._taken = batch
            self._watch.add(len(batch.samples), batch.present_S, batch.examples)
        return self._taken

    def _form_first_again(self, timeout_seconds: float) -> Batch | None:
        """The batch of the first void step; None if the source is unreachable."""
        if self._formed is None:
            void = self._again[0]

            def give_up() -> bool:
                sleep(timeout_seconds)
                return False

            with suppress(SourceUnavailable):  # the source is unreachable: no batch yet
                formed = self._form(void, give_up)
                self._formed = replace(formed, skipped=void.skipped, skipped_events=void.skipped_events)
        return self._formed

    def record(
        self,
        batch: Batch,
        generation: int,
        decision: Decision | None,
        alpha: float,
        rows: int,
        pruned: PruneRound | None = None,
    ) -> None:
        """Records the next step: its batch and, if the batch has samples, its decision. Durable at return.

        pruned: how chunks were pruned just before it.
        """
        manifest = Manifest(
            run=self._job.run,
            generation=generation,
            step=self.step + 1,
            ranges=batch.ranges,
            samples=len(batch.samples),
            rejected=len(batch.dead_letters),
            skipped=batch.skipped,
            skipped_events=batch.skipped_events,
            omitted_negatives=batch.omitted or UNSET,
        )
        assignment, worker_bytes = (b"", 1) if decision is None else pack_assignment(decision.assignment_B)
        hot = None if decision is None or decision.hot is None else decision.hot.tobytes()
        sole = None if decision is None else decision.sole
        forget = 0 if decision is None else decision.forget_before
        admitted = None if decision is None else decision.admitted
        chunked = None if decision is None else decision.chunked
        change = None if decision is None else decision.change
        decided = StepDecided(
            manifest=manifest,
            assignment=assignment,
            alpha=alpha,
            rows=rows,
            sole=sole,
            hot=hot,
            forget_before=forget,
            admitted=admitted,
            chunked=chunked,
            pruned=pruned,
            worker_bytes=worker_bytes,
        )
        self._journal.append_step(decided, change)
        if self._again:
            self._again.popleft()
            self._formed = None
        else:
            self._taken = None
        self._note_step(manifest, batch)
        if batch.skipped:
            self._skip(batch.skipped_events)
            self._log.warning("events left out", events=batch.skipped_events, ranges=len(batch.skipped))

    def write_dead_letters(self, batch: Batch, stop: Stop) -> bool:
        """Returns True once they are durable, False while the broker that stores them is unreachable.

        After a stop request an unreachable broker is an error: the letters are written when the run is resumed.
        """
        is_written = self._append_letters(batch.dead_letters, stop)
        self._count_letters(len(batch.dead_letters) if is_written else 0)
        return is_written

    # ── what was recorded before ──────────────────────────────────────────────────────────────────────────────────────
    def go_back(self, history: History, decided: Decided | None) -> None:
        """Forgets everything after a checkpoint, because it is trained again.

        decided: the state at that checkpoint; None for the start of the run.
        """
        self.step = history.base.step
        self._samples = history.base.samples
        self._positions = dict(history.base.positions)
        self._dead_letters, self._skipped = (decided.dead_letters, decided.skipped) if decided is not None else (0, 0)
        self._omitted = 0 if decided is None else decided.omitted
        self.newest_event_seconds = 0.0 if decided is None else decided.newest_event_seconds
        self._last_letters = ()
        self._watch = FieldWatch(self._job.schema, self._job.stream.absent_window, self._job.stream.on_absent_field)
        if decided is not None and decided.fields is not None:
            self._watch.load(decided.fields)
        self._again = deque(history.to_redecide)
        self._formed = None

    def decided(
        self,
        generation: int,
        rows: int,
        keys: KeyCounts,
        decisions: DecisionTimesState,
        expiry: tuple[StepTime, ...] = (),
        pruner: Pruner | None = None,
        answers: tuple[CommandAnswer, ...] = (),
        desired: Desired | None = None,
    ) -> Decided:
        """Returns what a checkpoint stores about everything decided so far."""
        return Decided(
            step=self.step,
            generation=generation,
            positions=dict(self._positions),
            samples=self._samples,
            rows=rows,
            forgotten=keys.forgotten,
            rare=keys.rare,
            dead_letters=self._dead_letters,
            skipped=self._skipped,
            omitted=self._omitted,
            newest_event_seconds=self.newest_event_seconds,
            expiry=expiry,
            pruning=None if pruner is None else pruner.state,
            are_new_keys_bare=UNSET if pruner is None else pruner.is_full,
            live_share=1.0 if pruner is None else pruner.live_share(keys.known),
            fields=self._watch.save(),
            decisions=decisions,
            answers=answers,
            desired=desired or Desired(),
        )

    def form_again(self, recorded: StepDecided, goes_on: GoesOn) -> Batch:
        """Forms the batch of a recorded step again; raises OtherEvents if the stream no longer holds the same events.

        goes_on: called while the stream does not answer; once it returns False, SourceUnavailable is raised.
        """
        manifest = recorded.manifest
        batch = self._form(manifest, goes_on)
        self._note_step(manifest, batch)
        self._watch.add(len(batch.samples), batch.present_S, batch.examples)
        self._skip(manifest.skipped_events)
        self._count_letters(manifest.rejected)
        self._last_letters = batch.dead_letters
        return batch

    def write_last_letters(self, stop: Stop) -> bool:
        """Writes the dead letters of the newest recorded step, which a crash may have prevented."""
        return not self._last_letters or self._append_letters(self._last_letters, stop)

    def go_live(self) -> None:
        """Starts to read after the last recorded step."""
        if self._loader is None:
            self._loader = self._load()

    def _load(self) -> BatchLoader:
        return self._open_loader(loader_job(self._job, self._journal.history))

    def _clock(self) -> str:
        """Whose times the records have."""
        return (self._loader.clock if self._loader is not None else "") or self._source.clock

    def _note_step(self, manifest: Manifest, batch: Batch) -> None:
        """Makes a step the newest one and updates positions, counts and freshness."""
        if not self._positions:
            self._positions = dict(self.start or {})
        advance(self._positions, manifest, self._job.folder)
        self.step = manifest.step
        self._samples += manifest.samples
        if manifest.omitted:
            self._omitted += manifest.omitted
            self._meter.count("omitted_events", manifest.omitted)
        if len(batch.samples):
            times_B = batch.samples.times_B
            self.freshness.add(self.step, batch.arrived_B, times_B)
            self.newest_event_seconds = max(self.newest_event_seconds, newest_event_time(times_B)[0])

    def _form(self, manifest: Manifest, goes_on: GoesOn) -> Batch:
        batch = form_batch(self._source, self._job.schema, manifest.ranges, self._job.stream.read_bytes, goes_on)
        found = len(batch.samples), len(batch.dead_letters), batch.omitted
        if found != (manifest.samples, manifest.rejected, manifest.omitted):
            raise OtherEvents(
                f"step {manifest.step} cannot be trained again: its ranges hold {found[0]} samples, {found[1]} "
                f"rejected events and {found[2]} omitted negatives; expected {manifest.samples}, "
                f"{manifest.rejected} and {manifest.omitted}; restore the log and the schema that the run began with"
            )
        return batch

    def close(self) -> None:
        if self._loader is not None:
            self._loader.close()

    def _append_letters(self, letters: tuple[DeadLetter, ...], stop: Stop) -> bool:
        try:
            self._letters.append(letters)
        except SinkUnavailable:
            if stop.requested:
                raise
            return False
        return True

    def _skip(self, events: int) -> None:
        if events:
            self._skipped += events
            self._meter.count("skipped_events", events)

    def _count_letters(self, letters: int) -> None:
        self._dead_letters += letters
        self._meter.count("dead_letters", letters)


def loader_job(job: DispatchJob, history: History) -> LoaderJob:
    """Reads on after the recorded steps, and after the void steps whose batches are formed again."""
    begun = history.begun
    positions = dict(history.positions)
    known = history.samples
    for void in history.to_redecide:
        advance(positions, void, job.folder)
        known += void.samples
    samples = job.samples or (None if begun is None else begun.samples)
    return LoaderJob(
        job.schema,
        job.stream.batch,
        start=job.start if begun is None else positions,
        linger_seconds=job.stream.linger_seconds,
        prefetch=job.stream.prefetch,
        limit=None if samples is None else max(0, samples - known),
        stop_at_end=job.stop_at_end,
        read_bytes=job.stream.read_bytes,
        on_out_of_range=job.stream.on_out_of_range,
        look_at=job.stream.absent_window if begun is None and job.stream.on_absent_field == "stop" else None,
        skip_above=job.stream.skip_above,
        first_batch=job.stream.first_batch,
        batch_growth=job.stream.batch_growth,
        seen=known,
    )

"""Checkpoints in the dispatcher's loop: when one is due, its result, and which one a recovery goes back to.

While somebody serves the model, a checkpoint is also due every ``serving.publish_seconds``, to be served as a snapshot.

A checkpoint begins after an ordered step: its flush is one more round, and the next steps are decided meanwhile. It
exists once its manifest is written (``dispatch/checkpoints/taking.py``); then it is recorded in the journal, the shards
are notified, and what is older than the oldest kept checkpoint is removed. ``dispatch/checkpoints/search.py`` finds the
one that a recovery goes back to.
"""

from collections.abc import Mapping
from time import monotonic, time

import structlog

from dispatch.checkpoints.gate import GateState
from dispatch.checkpoints.logged import CheckpointLog
from dispatch.checkpoints.reference import PendingScores
from dispatch.checkpoints.retention import discard_after, sweep
from dispatch.checkpoints.search import CheckpointSearch, UsableCheckpoint
from dispatch.checkpoints.state import Decided, Trained
from dispatch.checkpoints.taking import CheckpointBook, CheckpointFailure
from dispatch.errors import CheckpointUnreadable, JournalUnwritable
from dispatch.job import DispatchJob
from dispatch.journal.records import CheckpointTaken
from dispatch.journal.run import RunJournal
from dispatch.peers.shards import Shards
from infra.base.errors import FileUnusable, StorageError
from infra.base.storage import Storage
from infra.base.telemetry import Meter
from ingest.log.floor import remove_floor, write_floor
from ingest.streams.position import Position
from ps.checkpoints.manifest import CheckpointManifest
from ps.protocol import EMPTY_MODEL, CheckpointFailed

FAILED_SECONDS = 5.0
"""Pause after a failed checkpoint until the next that is only to be served, so that a full disk
does not flood the log.
"""
NEAR_SHARE = 0.25
"""Share of the time between two checkpoints in which owners write rows back ahead of the next."""


class Checkpointing:
    """The checkpoints of one run."""

    def __init__(self, job: DispatchJob, journal: RunJournal, meter: Meter) -> None:
        self._job = job
        self._journal = journal
        self.storage = Storage.at(job.storage)
        self._book = CheckpointBook(
            storage=self.storage,
            run=job.run,
            most=job.checkpoints.kept,
            last=journal.last_checkpoint,
            meter=meter,
            rule=job.publishing.gate,
            field_names=job.schema.sources,
        )
        self._begun: Decided | None = None
        """The decided state of the checkpoint that is being taken."""
        self._last_step = 0
        """Step of the last checkpoint begun."""
        self._due = monotonic() + job.checkpoints.seconds
        self._publication_due = 0.0
        self.newest: CheckpointManifest | None = None
        """The checkpoint that a recovery went back to, if no newer snapshot can have been announced."""
        self.trouble = ""
        """Why no checkpoint has been taken lately; empty: the last one that was due has been taken."""
        self._failed = 0
        """Checkpoints that failed in a row."""
        self.has_audience = False
        """Whether somebody serves the model."""
        self.search = CheckpointSearch(self.storage, journal, is_replay=not self.are_taken)
        self._log = structlog.get_logger()
        self._taken_log = CheckpointLog()

    @property
    def are_taken(self) -> bool:
        """Whether this run takes checkpoints at all."""
        return self._job.golden is None

    @property
    def is_underway(self) -> bool:
        return not self._book.is_idle

    @property
    def underway_seconds(self) -> float:
        """How long the checkpoint under way has taken so far; 0 if there is none."""
        return self._book.underway_seconds

    def may_begin(self, step: int) -> bool:
        """Whether a checkpoint can be begun after a step, and would contain anything new."""
        return self.are_taken and self._book.is_idle and step > self._last_step

    def is_due(self, step: int) -> bool:
        """Whether it is time for one."""
        return self._job.checkpoints.seconds > 0 and monotonic() >= self._due and self.may_begin(step)

    def is_publication_due(self, step: int) -> bool:
        """Whether it is time for one that is only to be served."""
        return self.has_audience and monotonic() >= self._publication_due and self.may_begin(step)

    @property
    def is_near(self) -> bool:
        """Whether the next checkpoint is so near that rows written back now will mostly stay unchanged until then.

        If none is planned, one may come at any time; and while the model is served, the next is always near.
        """
        return self.has_audience or monotonic() >= self._due - NEAR_SHARE * self._job.checkpoints.seconds

    def begin(self, decided: Decided, is_publication: bool = False) -> int:
        """Begins a checkpoint after the newest step; returns its number, 0 if the journal has no room to record it.

        It is recorded before any other process learns of it. is_publication: whether it is only to be served.
        """
        now = monotonic()
        self._last_step = decided.step
        self._publication_due = now + self._job.publishing.seconds
        self._due = self._due if is_publication else now + self._job.checkpoints.seconds
        try:
            self._journal.begin_checkpoint(self._book.next_number, decided.step, decided.positions, decided.samples)
        except JournalUnwritable as error:
            self._log.error("no checkpoint is taken; training continues", reason=str(error))
            self._note_failure(str(error))
            return 0
        self._begun = decided
        return self._book.begin(decided, self._job.shards, is_publication, self._journal.timeline)

    def add_state(self, trained: Trained, reference: PendingScores | None = None) -> None:
        """To be called when the checkpoint's flush is complete; reference: predictions of the served snapshot."""
        self._book.add_state(trained, reference)

    def advance(self, shards: Shards, generation: int) -> CheckpointManifest | None:
        """Handles the shards' messages about their parts and the checkpoint's result; returns it once it exists."""
        for shard, answer in shards.check():
            if isinstance(answer, CheckpointFailed):
                self._book.fail(answer.checkpoint, f"shard {shard}: {answer.reason}")
            else:
                self._book.saved(shard, answer)
        if (done := self._book.finished()) is not None:
            self._conclude(done)
            if isinstance(done, CheckpointManifest):
                self._failed = 0
                self.trouble = ""
                shards.commit(generation, done.step, done.number)
            else:
                self._note_failure(done.reason)
                self._publication_due = max(self._publication_due, monotonic() + FAILED_SECONDS)
        if (dropped := self._book.dropped()) is not None:
            self._journal.trim(dropped.retained.oldest)
            if dropped.positions is not None:
                self.keep_events(dropped.positions)
        return done if isinstance(done, CheckpointManifest) else None

    def _note_failure(self, reason: str) -> None:
        self._failed += 1
        times = f" {self._failed} times in a row" if self._failed > 1 else ""
        self.trouble = f"no checkpoint could be taken{times}; training continues, and a crash would cost more: {reason}"

    def keep_events(self, positions: Mapping[int, Position]) -> None:
        """Makes the embedded log keep everything after these positions, up to its cap."""
        stream = self._job.stream
        if stream.source == "log" and self.are_taken:
            try:
                write_floor(stream.folder, stream.topic, self._job.run, positions)
            except FileUnusable as error:
                self._log.error("the log does not know how far back this run may have to read", reason=str(error))

    def forget_events(self) -> None:
        """Releases the events, because the run has ended and needs none of them any more."""
        stream = self._job.stream
        if stream.source == "log" and self.are_taken:
            remove_floor(stream.folder, stream.topic, self._job.run)

    def abandon(self, reason: str) -> None:
        """Gives up the checkpoint that is being taken, unless it is about to exist."""
        if (done := self._book.abandon(reason)) is not None:
            self._conclude(done)

    def close(self) -> None:
        self.abandon("the dispatcher ends")
        self._book.close()

    # ── going back ────────────────────────────────────────────────────────────────────────────────────────────────────
    def choose(self) -> UsableCheckpoint | None:
        """The newest usable checkpoint; None: the empty model. See ``CheckpointSearch.find``."""
        try:
            self._book.find_last()
        except StorageError as error:
            raise CheckpointUnreadable(f"which checkpoints there are cannot be read: {error}", EMPTY_MODEL) from error
        self.newest = None
        found = self.search.find()
        if found is None:
            self._last_step = 0
            self._book.gate = GateState()
            return None
        self._last_step = found.state.decided.step
        self._book.gate = found.state.gate
        is_newest = found.is_last and found.manifest.timeline == self._journal.timeline
        self.newest = found.manifest if is_newest else None
        return found

    def void_after(self, number: int) -> None:
        """Voids the steps after a checkpoint, and later checkpoints."""
        discard_after(self.storage, number)

    def sweep(self) -> None:
        """Removes files that no checkpoint names; called when no shard is writing any."""
        try:
            gone = sweep(self.storage) if self.are_taken else []
        except StorageError as error:
            self._log.warning(
                "files of unfinished checkpoints were not removed; the next attempt will", reason=str(error)
            )
            return
        if gone:
            self._log.info("files of unfinished checkpoints removed", files=len(gone))

    def _conclude(self, done: CheckpointManifest | CheckpointFailure) -> None:
        decided, self._begun = self._begun, None
        assert decided is not None
        if isinstance(done, CheckpointFailure):
            self._last_step = 0  # its content becomes part of the next one
            return
        try:
            checkpoint = CheckpointTaken(done.number, done.step, decided.positions, decided.samples, at_seconds=time())
            self._journal.take_checkpoint(checkpoint)
        except JournalUnwritable as error:  # its manifest exists, and its beginning is recorded
            self._log.warning("a taken checkpoint could not be recorded", checkpoint=done.number, reason=str(error))
        self._taken_log.log_taken(done, self.has_audience)
        self._book.drop_old()

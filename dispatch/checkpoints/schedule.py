"""Checkpoints in the dispatcher's loop: when one is due, what becomes of it, and which one a recovery goes back to.

While somebody serves the model, a checkpoint is also due every ``serving.publish_seconds``: a version of the model is a
checkpoint.

A checkpoint begins behind an ordered step: its flush is one more round, and the next steps are decided meanwhile. It
exists once its manifest is written (``dispatch/checkpoints/taking.py``); then the journal says so, the shards hear of
it, and what is older than the oldest checkpoint kept goes. Which one a recovery goes back to is found in
``dispatch/checkpoints/search.py``.
"""

from collections.abc import Mapping
from time import monotonic, time

import structlog

from dispatch.checkpoints.gate import GateState
from dispatch.checkpoints.logged import CheckpointLog
from dispatch.checkpoints.reference import PendingScores
from dispatch.checkpoints.retention import discard_after, sweep
from dispatch.checkpoints.search import CheckpointSearch
from dispatch.checkpoints.state import Decided, DispatcherState, Trained
from dispatch.checkpoints.taking import CheckpointBook, CheckpointFailure
from dispatch.errors import CheckpointUnreadable, JournalFull
from dispatch.job import DispatchJob
from dispatch.journal.records import CheckpointTaken
from dispatch.journal.run import RunJournal
from dispatch.peers.shards import Shards
from dispatch.placement.rows.index import Index
from infra.base.errors import FileUnusable, StorageError
from infra.base.storage import Storage
from infra.base.telemetry import Meter
from ingest.log.floor import remove_floor, write_floor
from ingest.streams.position import Position
from ps.checkpoints.manifest import CheckpointManifest
from ps.protocol import EMPTY_MODEL, CheckpointFailed

FAILED_SECONDS = 5.0
"""after a checkpoint that failed, until the next that is only to be served: a disk that is full does not fill the
log"""
NEAR_SHARE = 0.25
"""of the time between two checkpoints, in which owners write rows back ahead of the next"""


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
        """of the checkpoint that is being taken"""
        self._last_step = 0
        """that a checkpoint was begun after"""
        self._due = monotonic() + job.checkpoints.seconds
        self._publication_due = 0.0
        self.newest: CheckpointManifest | None = None
        """what a recovery has gone back to, if no version can have been announced that is newer"""
        self.trouble = ""
        """why no checkpoint has been taken lately; empty: the last one that was due has been"""
        self._failed = 0
        """checkpoints in a row"""
        self.has_audience = False
        """whether somebody serves the model"""
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

    def may_begin(self, step: int) -> bool:
        """Whether a checkpoint can be begun after a step, and would hold anything new."""
        return self.are_taken and self._book.is_idle and step > self._last_step

    def is_due(self, step: int) -> bool:
        """Whether it is time for one."""
        return self._job.checkpoints.seconds > 0 and monotonic() >= self._due and self.may_begin(step)

    def is_publication_due(self, step: int) -> bool:
        """Whether it is time for one that is only to be served."""
        return self.has_audience and monotonic() >= self._publication_due and self.may_begin(step)

    @property
    def is_near(self) -> bool:
        """Whether the next checkpoint is so near that rows written back now will mostly stay as they are until then.

        Where none is planned, it may come at any time; and while the model is served, the next is always near.
        """
        return self.has_audience or monotonic() >= self._due - NEAR_SHARE * self._job.checkpoints.seconds

    def begin(self, decided: Decided, is_publication: bool = False) -> int:
        """Begins a checkpoint after the newest step; returns its number, 0 if there is no room to write that down.

        It is on record before anyone hears of it. is_publication: whether it is only to be served.
        """
        now = monotonic()
        self._last_step = decided.step
        self._publication_due = now + self._job.publishing.seconds
        self._due = self._due if is_publication else now + self._job.checkpoints.seconds
        try:
            self._journal.begin_checkpoint(self._book.next_number, decided.step, decided.positions, decided.samples)
        except JournalFull as error:
            self._log.error("no checkpoint is taken, and training goes on", reason=str(error))
            self._note_failure(str(error))
            return 0
        self._begun = decided
        return self._book.begin(decided, self._job.shards, is_publication, self._journal.timeline)

    def add_state(self, trained: Trained, reference: PendingScores | None = None) -> None:
        """The checkpoint's flush is complete; reference: what the served version predicts for the newest samples."""
        self._book.add_state(trained, reference)

    def advance(self, shards: Shards, generation: int) -> CheckpointManifest | None:
        """Takes what shards say about their parts, and what has become of the checkpoint; returns it once it exists."""
        for shard, told in shards.check():
            if isinstance(told, CheckpointFailed):
                self._book.fail(told.checkpoint, f"shard {shard}: {told.reason}")
            else:
                self._book.saved(shard, told)
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
        self.trouble = f"no checkpoint could be taken{times}; training goes on, and a crash costs more: {reason}"

    def keep_events(self, positions: Mapping[int, Position]) -> None:
        """Makes the embedded log keep what comes after these positions, up to its cap."""
        stream = self._job.stream
        if stream.source == "log" and self.are_taken:
            try:
                write_floor(stream.folder, stream.topic, self._job.run, positions)
            except FileUnusable as error:
                self._log.error("the log does not know how far back this run may have to read", reason=str(error))

    def forget_events(self) -> None:
        """The run is over, and needs none of them any more."""
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
    def choose(self) -> tuple[DispatcherState | None, Index]:
        """State and index of the newest usable checkpoint; None: the empty model. See ``CheckpointSearch.find``."""
        try:
            self._book.find_last()
        except StorageError as error:
            raise CheckpointUnreadable(f"which checkpoints there are cannot be read: {error}", EMPTY_MODEL) from error
        self.newest = None
        found = self.search.find()
        if found is None:
            self._last_step = 0
            self._book.gate = GateState()
            return None, Index()
        self._last_step = found.state.decided.step
        self._book.gate = found.state.gate
        is_newest = found.is_last and found.manifest.timeline == self._journal.timeline
        self.newest = found.manifest if is_newest else None
        return found.state, found.index

    def void_after(self, number: int) -> None:
        """The steps after a checkpoint are void, and so are later checkpoints."""
        discard_after(self.storage, number)

    def sweep(self) -> None:
        """Removes files that no checkpoint names; called when no shard is writing any."""
        try:
            gone = sweep(self.storage) if self.are_taken else []
        except StorageError as error:
            self._log.warning("files of unfinished checkpoints stay; they go the next time", reason=str(error))
            return
        if gone:
            self._log.info("files of unfinished checkpoints removed", files=len(gone))

    def _conclude(self, done: CheckpointManifest | CheckpointFailure) -> None:
        decided, self._begun = self._begun, None
        assert decided is not None
        if isinstance(done, CheckpointFailure):
            self._last_step = 0  # what it would have held is part of the next
            return
        try:
            checkpoint = CheckpointTaken(done.number, done.step, decided.positions, decided.samples, at_seconds=time())
            self._journal.take_checkpoint(checkpoint)
        except JournalFull as error:  # its manifest is there, and that it was begun is on record
            self._log.warning("that a checkpoint was taken is not on record", checkpoint=done.number, reason=str(error))
        self._taken_log.log_taken(done, self.has_audience)
        self._book.drop_old()

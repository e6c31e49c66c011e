"""Cuts in the dispatcher's loop: when one is due, what becomes of it, and which one a recovery goes back to.

While somebody serves the model, a cut is also due every ``serving.publish_seconds``: a version of the model is a cut.

A cut begins behind an ordered step: its flush is one more round, and the next steps are decided meanwhile. It exists
once its manifest is written (``dispatch/cuts/taking.py``); then the journal says so, the shards hear of it, and what is
older than the oldest cut kept goes. Which one a recovery goes back to is found in ``dispatch/cuts/search.py``.
"""

from collections.abc import Mapping
from time import monotonic, time

import structlog

from dispatch.cuts.gate import GateState
from dispatch.cuts.logged import CutLog
from dispatch.cuts.reference import PendingScores
from dispatch.cuts.retention import discard_after, sweep
from dispatch.cuts.search import CutSearch
from dispatch.cuts.state import Decided, DispatcherState, Trained
from dispatch.cuts.taking import CutBook, CutFailure
from dispatch.errors import CutUnreadable, JournalFull
from dispatch.job import DispatchJob
from dispatch.journal.records import CutTaken
from dispatch.journal.run import RunJournal
from dispatch.peers.shards import Shards
from dispatch.placement.rows.index import Index
from infra.base.errors import FileUnusable, StorageError
from infra.base.storage import Storage
from infra.base.telemetry import Meter
from ingest.log.floor import remove_floor, write_floor
from ingest.streams.position import Position
from ps.cuts.manifest import CutManifest
from ps.protocol import EMPTY_MODEL, CutFailed

FAILED_SECONDS = 5.0
"""after a cut that failed, until the next that is only to be served: a disk that is full does not fill the log"""
NEAR_SHARE = 0.25
"""of the time between two cuts, in which owners write rows back ahead of the next"""


class Cutting:
    """The cuts of one run."""

    def __init__(self, job: DispatchJob, journal: RunJournal, meter: Meter) -> None:
        self._job, self._journal = job, journal
        self.storage = Storage.at(job.storage)
        told = self.storage, job.run, job.cuts.kept, journal.last_cut, meter, job.publishing.gate
        self._book = CutBook(*told, job.schema.sources)
        self._begun: Decided | None = None
        """of the cut that is being taken"""
        self._last_step = 0
        """that a cut was begun after"""
        self._due = monotonic() + job.cuts.seconds
        self._publication_due = 0.0
        self.newest: CutManifest | None = None
        """what a recovery has gone back to, if no version can have been announced that is newer"""
        self.trouble = ""
        """why no cut has been taken lately; empty: the last one that was due has been"""
        self._failed = 0
        """cuts in a row"""
        self.has_audience = False
        """whether somebody serves the model"""
        self.search = CutSearch(self.storage, journal, is_replay=not self.are_taken)
        self._log, self._taken_log = structlog.get_logger(), CutLog()

    @property
    def are_taken(self) -> bool:
        """Whether this run takes cuts at all."""
        return self._job.golden is None

    @property
    def is_underway(self) -> bool:
        return not self._book.is_idle

    def may_begin(self, step: int) -> bool:
        """Whether a cut can be begun after a step, and would hold anything new."""
        return self.are_taken and self._book.is_idle and step > self._last_step

    def is_due(self, step: int) -> bool:
        """Whether it is time for one."""
        return self._job.cuts.seconds > 0 and monotonic() >= self._due and self.may_begin(step)

    def is_publication_due(self, step: int) -> bool:
        """Whether it is time for one that is only to be served."""
        return self.has_audience and monotonic() >= self._publication_due and self.may_begin(step)

    @property
    def is_near(self) -> bool:
        """Whether the next cut is so near that rows written back now will mostly stay as they are until then.

        Where none is planned, it may come at any time; and while the model is served, the next is always near.
        """
        return self.has_audience or monotonic() >= self._due - NEAR_SHARE * self._job.cuts.seconds

    def begin(self, decided: Decided, is_publication: bool = False) -> int:
        """Begins a cut after the newest step; returns its number, 0 if there is no room to write that down.

        It is on record before anyone hears of it. is_publication: whether it is only to be served.
        """
        now, self._last_step = monotonic(), decided.step
        self._publication_due = now + self._job.publishing.seconds
        self._due = self._due if is_publication else now + self._job.cuts.seconds
        try:
            self._journal.begin_cut(self._book.next_number, decided.step, decided.positions, decided.samples)
        except JournalFull as error:
            self._log.error("no cut is taken, and training goes on", reason=str(error))
            self._note_failure(str(error))
            return 0
        self._begun = decided
        return self._book.begin(decided, self._job.shards, is_publication, self._journal.line)

    def add_state(self, trained: Trained, reference: PendingScores | None = None) -> None:
        """The flush of the cut is complete; reference: what the version that is served makes of the newest samples."""
        self._book.add_state(trained, reference)

    def follow(self, shards: Shards, generation: int) -> CutManifest | None:
        """Takes what shards say about their parts, and what has become of the cut; returns it once it exists."""
        for shard, told in shards.check():
            if isinstance(told, CutFailed):
                self._book.fail(told.cut, f"shard {shard}: {told.reason}")
            else:
                self._book.saved(shard, told)
        if (done := self._book.finished()) is not None:
            self._conclude(done)
            if isinstance(done, CutManifest):
                self._failed, self.trouble = 0, ""
                shards.commit(generation, done.step, done.number)
            else:
                self._note_failure(done.reason)
                self._publication_due = max(self._publication_due, monotonic() + FAILED_SECONDS)
        if (dropped := self._book.dropped()) is not None:
            self._journal.trim(dropped.retained.oldest)
            if dropped.positions is not None:
                self.keep_events(dropped.positions)
        return done if isinstance(done, CutManifest) else None

    def _note_failure(self, reason: str) -> None:
        self._failed += 1
        times = f" {self._failed} times in a row" if self._failed > 1 else ""
        self.trouble = f"no cut could be taken{times}; training goes on, and a crash costs more: {reason}"

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
        """Gives up the cut that is being taken, unless it is about to exist."""
        if (done := self._book.abandon(reason)) is not None:
            self._conclude(done)

    def close(self) -> None:
        self.abandon("the dispatcher ends")
        self._book.close()

    # ── going back ────────────────────────────────────────────────────────────────────────────────────────────────────
    def choose(self) -> tuple[DispatcherState | None, Index]:
        """The state and the index of the newest cut that can be used; None: the empty model. See ``CutSearch.find``."""
        try:
            self._book.find_last()
        except StorageError as error:
            raise CutUnreadable(f"which cuts there are cannot be read: {error}", EMPTY_MODEL) from error
        self.newest, found = None, self.search.find()
        if found is None:
            self._last_step, self._book.gate = 0, GateState()
            return None, Index()
        self._last_step, self._book.gate = found.state.decided.step, found.state.gate
        is_newest = found.is_last and found.manifest.line == self._journal.line
        self.newest = found.manifest if is_newest else None
        return found.state, found.index

    def void_after(self, number: int) -> None:
        """The steps after a cut are void, and so are later cuts."""
        discard_after(self.storage, number)

    def sweep(self) -> None:
        """Removes files that no cut names; called when no shard is writing any."""
        try:
            gone = sweep(self.storage) if self.are_taken else []
        except StorageError as error:
            self._log.warning("files of unfinished cuts stay; they go the next time", reason=str(error))
            return
        if gone:
            self._log.info("files of unfinished cuts removed", files=len(gone))

    def _conclude(self, done: CutManifest | CutFailure) -> None:
        decided, self._begun = self._begun, None
        assert decided is not None
        if isinstance(done, CutFailure):
            self._last_step = 0  # what it would have held is part of the next
            return
        try:
            cut = CutTaken(done.number, done.step, decided.positions, decided.samples, at_seconds=time())
            self._journal.take_cut(cut)
        except JournalFull as error:  # its manifest is there, and that it was begun is on record
            self._log.warning("that a cut was taken is not on record", cut=done.number, reason=str(error))
        self._taken_log.log_taken(done, self.has_audience)
        self._book.drop_old()

"""The journal of the live run: what is recorded, and what a replay is compared with."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import time

import numpy as np
import structlog
from numpy.typing import NDArray

from dispatch.job import DispatchJob
from dispatch.journal.answers import CommandAnswer
from dispatch.journal.digest import digest_of, digest_of_logits
from dispatch.journal.history import JOURNAL, check_settings, check_unfinished, read_checkpoints, read_history
from dispatch.journal.log import JournalWriter
from dispatch.journal.readers import JournalReaders
from dispatch.journal.records import (
    AlphaChanged,
    AnyRecord,
    Begun,
    CheckpointBegun,
    CheckpointTaken,
    Commanded,
    Ended,
    Faulted,
    GenerationStarted,
    Redecided,
    SetChosen,
    StepDecided,
    StepDone,
    StepFigures,
    Stopped,
)
from dispatch.journal.restoring import open_copy
from dispatch.journal.terms import GenerationTerms
from dispatch.peers.roster import Member
from dispatch.placement.capacity.participation import SetChange
from infra.base.telemetry import code_version
from ingest.streams.position import Position
from ps.protocol import GO_ON


class RunJournal:
    """One run's journal, open for writing, and its history when it was opened."""

    def __init__(self, job: DispatchJob, base: int | None = None) -> None:
        """Raises SettingsChanged if the run cannot be resumed with the settings of this job.

        base: number of the checkpoint that the history begins with; None: the oldest one.
        """
        golden = job.golden
        self.folder = job.folder if golden is None else golden.folder
        """Folder of the run whose steps are recorded."""
        self._job = job
        if job.journal_copy is not None:
            open_copy(job.folder / JOURNAL, job.journal_copy)
        self._writer = JournalWriter(job.folder / JOURNAL, copy=job.journal_copy)
        self.identity = self._writer.identity
        """The unique identity of the journal."""
        try:
            found = read_history(self.folder / JOURNAL, base)
            if golden is None:
                check_unfinished(found, self.folder)
            elif golden.last_step is not None:
                found = found.up_to(golden.last_step)
            check_settings(found, job.run, self.folder, job.agreement.frozen, job.agreement.earlier)
        except BaseException:
            self._writer.close()
            raise
        self.history = found
        """The history at the time of opening."""
        self.generation = found.last_generation if golden is None else 0
        """Number of the newest generation."""
        self.differs_at: int | None = None
        """First step whose logits differed when it was trained again."""
        self.answers: Mapping[str, CommandAnswer] = self._writer.answers
        """Answers to the commands that were recorded then, or later; by id."""
        self.readers = JournalReaders(self._writer.folder, self._writer.cursor)
        """Who reads the journal, and how far."""
        self._warned_at = -1
        """The floor at the last warning about dropped unread records: one warning is enough until somebody reads on."""
        self._begun = found.begun
        self._newest = found.newest
        self._last_checkpoint = found.last_checkpoint
        self.timeline = found.timeline
        """How often steps have been declared void: a snapshot of the model is named (timeline, step)."""
        if golden is not None and found.begun is not None:
            self._writer.note(found.begun)

    @property
    def own_folder(self) -> Path:
        """The folder in which it is written."""
        return self._writer.folder

    @property
    def cursor(self) -> int:
        """Position at the end of the journal: the number of durable frames."""
        return self._writer.cursor

    @property
    def steered(self) -> int:
        """Cursor of the newest command or change of alpha."""
        return self._writer.steered

    @property
    def last_checkpoint(self) -> int:
        """The highest number of a recorded checkpoint, taken or not."""
        return self._last_checkpoint

    def checkpoint_numbers(self) -> set[int]:
        """Numbers of recorded checkpoints that were begun; the storage shows whether they exist."""
        return {checkpoint.number for checkpoint in read_checkpoints(self.folder / JOURNAL).begun_checkpoints}

    def read_again(self, base: int) -> None:
        """Reads the history after a checkpoint again; raises CheckpointUnusable if that is not recorded."""
        found = read_history(self.folder / JOURNAL, base)
        golden = self._job.golden
        self.history = found if golden is None or golden.last_step is None else found.up_to(golden.last_step)

    def reason_to_start(self, is_resumed: bool, has_other_members: bool = True, has_other_policy: bool = False) -> str:
        """Why the next generation starts."""
        if not self.generation:
            return "start"
        if is_resumed:
            return "resumed"
        if has_other_members:
            return "members changed"
        return "policy changed" if has_other_policy else "hub or ring changed"

    def start_generation(
        self, members: Sequence[Member], start: dict[int, Position] | None, terms: GenerationTerms, base: int
    ) -> GenerationStarted:
        """Records who trains from now on and, the first time, how the run begins. Durable at return.

        start: where partitions begin, if the run begins; base: the checkpoint that the model goes back to.
        """
        arithmetic = tuple(dict.fromkeys(member.arithmetic for member in members))
        begun = self.history.begun
        opening = tuple[Begun, ...]()
        if begun is None and not self.generation:
            settings = dict(self._job.agreement.frozen)
            job = self._job
            opening = (
                Begun(
                    run=job.run,
                    topic=job.topic,
                    start=start or {},
                    settings=settings,
                    digest=digest_of(settings),
                    arithmetic=arithmetic,
                    samples=job.samples,
                    at_seconds=time(),
                    code=code_version(),
                ),
            )
        elif begun is not None and not set(arithmetic) <= set(begun.arithmetic):
            hint = "machines other than those that the run began with may round differently"
            structlog.get_logger().warning(hint, was=begun.arithmetic, now=arithmetic)
        names = tuple(member.name for member in members)
        started = GenerationStarted(
            number=self.generation + 1,
            members=names,
            uses_hub=terms.uses_hub,
            replicas=terms.replicas,
            base=None if base == GO_ON else base,
            reason=terms.reason,
            at_seconds=time(),
        )
        self._writer.append(*opening, started)
        self._begun, self._newest = opening[0] if opening else self._begun, started
        self.generation = started.number
        return started

    def append_step(self, step: StepDecided, change: SetChange | None = None) -> None:
        """Records a step. Durable at return. change: of the workers that take part, if the step begins with others."""
        records: list[AnyRecord] = [step]
        if change is not None:
            assert self._newest is not None, "no generation has started"
            records.insert(0, set_chosen(step.step, change, self._newest.members))
        self._writer.append(*records)

    def complete(self, step: int, logits_B: NDArray[np.float32], figures: StepFigures | None = None) -> None:
        """Notes the logits of a step; compares them with the recorded ones if it was trained before."""
        digest = digest_of_logits(logits_B)
        known = self.history.digests.get(step)
        if known is None:
            self._writer.note(StepDone(step, digest, figures))
        elif known != digest and self.differs_at is None:
            self.differs_at = step
            structlog.get_logger().error("trained again, the run differs from its journal", first_step=step)

    # ── checkpoints
    # ──────────────────────────────────────────────────────────────────────────────────────────────────────────
    def begin_checkpoint(self, number: int, step: int, positions: Mapping[int, Position], samples: int) -> None:
        """Records that a checkpoint is begun, in the segment that will hold all steps after it. Durable at return.

        To be called while the step is the newest, before the next one is decided. positions, samples: after that step.
        """
        assert self._begun is not None, "the run has not begun"
        assert self._newest is not None, "no generation has started"
        self._writer.begin_checkpoint(
            CheckpointBegun(
                number=number,
                step=step,
                positions=dict(positions),
                samples=samples,
                begun=self._begun,
                generation=self._newest,
                timeline=self.timeline,
                at_seconds=time(),
            )
        )
        self._last_checkpoint = number

    def take_checkpoint(self, checkpoint: CheckpointTaken) -> None:
        """Records that a checkpoint exists. Durable at return."""
        if checkpoint.number > self._last_checkpoint:
            self.begin_checkpoint(checkpoint.number, checkpoint.step, checkpoint.positions, checkpoint.samples)
        self._writer.append(checkpoint)

    def steer(self, change: Commanded | AlphaChanged) -> None:
        """Records a command, or a change of alpha, which takes effect by this."""
        self._writer.append(change)

    def fault(self, step: int, fault: Exception) -> None:
        """Records why the run goes back to a checkpoint. Durable at return."""
        self._writer.append(
            Faulted(
                step=step, generation=self.generation, kind=type(fault).__name__, text=str(fault), at_seconds=time()
            )
        )

    def redecide(self, base: int, step: int) -> None:
        """Declares the steps after a checkpoint void. Durable at return."""
        self._writer.append(Redecided(base, step, at_seconds=time()))
        self.timeline += 1

    def trim(self, oldest_kept: int) -> None:
        """Drops records from before a checkpoint that neither it nor a later one needs.

        Records that some reader has not read are kept while there is room for them.
        """
        floor = self.readers.forget_silent()
        has_unread = self._writer.drop_before(oldest_kept, floor, self._job.dispatch.journal_bytes)
        if has_unread and self._warned_at != floor:
            self._warned_at = floor
            hint = "the journal is over dispatch.journal_bytes; its oldest records are gone, and not all have read them"
            facts = {"reader": self.readers.slowest, "read_up_to": floor, "cursor": self.cursor}
            structlog.get_logger().warning(hint, **facts)

    def stop(self, reason: str, step: int, rows: int, rows_digest: str) -> None:
        """Records a stop, after which the run may be resumed. Durable at return."""
        self._writer.append(Stopped(reason, step, rows, rows_digest, at_seconds=time()))

    def end(self, reason: str, step: int, rows: int, rows_digest: str) -> None:
        """Records the end of the run. Durable at return."""
        self._writer.append(Ended(reason, step, rows, rows_digest, self.differs_at, at_seconds=time()))

    def close(self) -> None:
        self._writer.close()
        if self._job.journal_copy is not None:
            self._job.journal_copy.close()


def set_chosen(step: int, change: SetChange, names: Sequence[str]) -> SetChosen:
    """The record of a change with which a step begins; names: of the generation's members."""
    parked = change.parked(names)
    expected, before = change.expected
    return SetChosen(
        step,
        tuple(name for name in names if name not in parked),
        change.reason,
        expected_seconds=expected,
        before_seconds=before,
        at_seconds=time(),
    )

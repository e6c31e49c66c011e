"""Checkpoints while they are taken: who has saved its part, and when a checkpoint exists.

1. Begun: the checkpoint has a number, which is never used again; shards learn it with the flush after its step.
2. Shards saved: each has answered that its files are durable.
3. Step trained: the flush is complete, and the dispatcher's own part is known. If somebody serves the model, one server
   is asked about the newest samples, and has answered or is not waited for any longer.
4. Dispatcher saved: a thread has written that part.
5. Manifest written: the checkpoint exists; ``finished`` returns it, and the loop records it and notifies the shards.
6. Old ones dropped: once that is done (``drop_old``); ``dropped`` says how far back journal and stream must reach.

A failure before 5 costs this checkpoint, and its content becomes part of the next one: training continues, nothing
names its files, and they are removed. Steps 4 to 6 run on one thread, so that the loop never waits for a disk.
"""

import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog
from msgspec import UNSET

from dispatch.checkpoints.gate import CheckpointReadings, GateState, Judgement, PresentCounts, judge
from dispatch.checkpoints.reference import PendingScores
from dispatch.checkpoints.retention import Retained, drop_old, highest_number
from dispatch.checkpoints.state import Decided, DispatcherState, Trained, read_state, write_state
from dispatch.job import GateRule
from dispatch.progress.prequential import recent_quality
from infra.base.errors import FreshetError
from infra.base.faults import reach
from infra.base.storage import Storage
from infra.base.telemetry import Meter
from ingest.batches.absent import FieldCounts
from ingest.streams.position import Position
from ps.checkpoints.manifest import CheckpointManifest, ShardPart, manifest_name, read_manifest, write_manifest
from ps.errors import CheckpointDamaged
from ps.protocol import EMPTY_MODEL, CheckpointSaved, FilePart


class CheckpointFailure(NamedTuple):
    """A checkpoint that does not exist and never will."""

    number: int
    step: int
    reason: str


class Dropped(NamedTuple):
    """What is kept since old checkpoints were dropped."""

    retained: Retained
    positions: dict[int, Position] | None
    """Positions of the oldest checkpoint that the run can go back to: the stream must still hold the events after them;
    None: that is the empty model.
    """


@dataclass
class Underway:
    """A checkpoint that has begun."""

    number: int
    shards: int
    decided: Decided
    began: float
    is_publication: bool = False
    timeline: int = 0
    trained: Trained | None = None
    reference: PendingScores | None = None
    """Scores of the newest samples by the served snapshot; None: nobody is asked."""
    parts: dict[int, ShardPart] = field(default_factory=dict)
    """Parts by shard."""
    non_finite: int = 0
    """Non-finite values of all shards that have saved their parts."""
    failure: str | None = None
    writing: "Future[tuple[CheckpointManifest, GateState]] | None" = None
    is_pruned: bool = False
    """Whether chunks of rows were pruned since the checkpoint before."""

    @property
    def is_ready(self) -> bool:
        """Whether nothing is missing but the manifest."""
        is_answered = self.reference is None or self.reference.is_over
        return self.trained is not None and len(self.parts) == self.shards and is_answered

    def readings(self, samples: int, field_names: tuple[str, ...]) -> CheckpointReadings:
        """What the gate judges, once nothing is missing; samples: most of the latest samples."""
        assert self.trained is not None
        parts = self.parts.values()
        # a chain that starts again holds all rows; a round of pruning changes many that nobody trained
        is_compared = all(len(part.files) > 1 for part in parts) and not self.is_pruned
        changed = sum(part.files[-1].rows for part in parts) if is_compared else None
        recent = recent_quality(self.trained.accounts.quality, samples)
        return CheckpointReadings(
            recent,
            trained=self.decided.samples,
            rows=self.decided.rows,
            changed=changed,
            non_finite=self.non_finite,
            live_share=self.decided.live_share,
            newest_event_seconds=self.decided.newest_event_seconds,
            number=self.number,
            step=self.decided.step,
            reference=None if self.reference is None else self.reference.scores(),
            fields=present_counts(self.decided.fields),
            field_names=field_names,
        )


def present_counts(fields: FieldCounts | None) -> PresentCounts | None:
    """Counts of all samples so far."""
    if fields is None:
        return None
    return PresentCounts(fields.total + fields.recent, fields.total_S + fields.recent_S)


class CheckpointBook:
    """The dispatcher's record of the checkpoint that is being taken: one at a time; none of its calls waits."""

    def __init__(
        self,
        storage: Storage,
        run: str,
        most: int,
        last: int,
        meter: Meter,
        rule: GateRule | None = None,
        field_names: tuple[str, ...] = (),
    ) -> None:
        """most: checkpoints that are kept; last: highest number of a checkpoint that the journal knows; rule: of the
        gate;
        field_names: of events, in the order in which they are counted.

        Before the first checkpoint, ``find_last`` looks for numbers that the storage knows.
        """
        self._storage = storage
        self._run = run
        self._most = most
        self._meter = meter
        self._last = last
        self._rule = rule or GateRule()
        self.gate = GateState()
        """What the gate compares the next checkpoint with."""
        self._field_names = field_names
        self._underway: Underway | None = None
        self._last_round = 0
        """The step of the last round of pruning that a checkpoint contains."""
        self._dropping: Future[Dropped] | None = None
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._log = structlog.get_logger()

    @property
    def is_idle(self) -> bool:
        """Whether a checkpoint can be begun."""
        return self._underway is None

    @property
    def underway_seconds(self) -> float:
        """Time since the checkpoint under way began; 0 if there is none."""
        return 0.0 if self._underway is None else time.monotonic() - self._underway.began

    @property
    def next_number(self) -> int:
        """The next number, above that of every checkpoint before, taken or failed."""
        return self._last + 1

    def find_last(self) -> None:
        """Excludes the numbers of all checkpoints of which the storage has any file; raises StorageError."""
        self._last = max(self._last, highest_number(self._storage))

    @property
    def number(self) -> int | None:
        """Number of the checkpoint that is being taken."""
        return None if self._underway is None else self._underway.number

    def begin(self, decided: Decided, shards: int, is_publication: bool = False, timeline: int = 0) -> int:
        """Begins the next checkpoint, after the newest step and before another one is decided; returns its number.

        is_publication: whether it is taken only to be served; timeline: how often steps have been discarded and decided
        again.
        """
        assert self._underway is None, "a checkpoint is being taken"
        self._last += 1
        self._underway = Underway(
            self._last,
            shards,
            decided,
            time.monotonic(),
            is_publication,
            timeline,
            is_pruned=decided.pruning is not None and decided.pruning.last_round > self._last_round,
        )
        return self._last

    def saved(self, shard: int, message: CheckpointSaved) -> None:
        """To be called when a shard's part is durable. Parts of checkpoints that have failed meanwhile are removed."""
        checkpoint = self._underway
        if checkpoint is None or checkpoint.number != message.checkpoint or checkpoint.failure is not None:
            self._thread.submit(self._remove, message.checkpoint, message.parts)
            return
        checkpoint.parts[shard] = ShardPart(shard, message.rows, tuple(message.parts))
        checkpoint.non_finite += message.non_finite
        reach("checkpoint_half_done", message.step)
        self._write_if_ready(checkpoint)

    def add_state(self, trained: Trained, reference: PendingScores | None = None) -> None:
        """To be called when the flush after the checkpoint's step is complete, and no later step is; reference:
        predictions.
        """
        if self._underway is not None and self._underway.trained is None:
            self._underway.trained = trained
            self._underway.reference = reference
            self._write_if_ready(self._underway)

    def fail(self, number: int, reason: str) -> None:
        """Gives up the checkpoint, since a part of it failed; does nothing if it is not being taken or is complete."""
        checkpoint = self._underway
        if (
            checkpoint is not None
            and checkpoint.number == number
            and checkpoint.writing is None
            and checkpoint.failure is None
        ):
            checkpoint.failure = reason
            for part in checkpoint.parts.values():
                self._thread.submit(self._remove, number, part.files)

    def finished(self) -> CheckpointManifest | CheckpointFailure | None:
        """The result of the checkpoint, returned once; None while it is being taken."""
        checkpoint = self._underway
        if checkpoint is not None:
            self._write_if_ready(checkpoint)  # it may have waited for an answer
        if checkpoint is None or (
            checkpoint.failure is None and (checkpoint.writing is None or not checkpoint.writing.done())
        ):
            return None
        self._underway = None
        if checkpoint.writing is not None and (error := checkpoint.writing.exception()) is not None:
            if not isinstance(error, FreshetError):
                raise error
            checkpoint.failure = str(error)
        if checkpoint.failure is not None:
            return self._count_failure(
                CheckpointFailure(checkpoint.number, checkpoint.decided.step, checkpoint.failure)
            )
        assert checkpoint.writing is not None
        if checkpoint.decided.pruning is not None:
            self._last_round = checkpoint.decided.pruning.last_round
        self._meter.count("checkpoints")
        self._meter.observe("checkpoint", time.monotonic() - checkpoint.began)
        self._meter.gauge("checkpoint_step", checkpoint.decided.step)
        manifest, self.gate = checkpoint.writing.result()
        self._meter.count("versions_held", int(not manifest.verdict.is_good))
        return manifest

    def abandon(self, reason: str) -> CheckpointManifest | CheckpointFailure | None:
        """Gives up the checkpoint that is being taken, if any; waits if its manifest is just being written."""
        if self._underway is None:
            return None
        if self._underway.writing is not None:
            self._underway.writing.exception()
        self.fail(self._underway.number, reason)
        return self.finished()

    # ── old checkpoints
    # ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def drop_old(self) -> None:
        """Removes old checkpoints on the thread; to be called when the newest one is recorded."""
        if self._dropping is None:
            self._dropping = self._thread.submit(self._drop_old)

    def dropped(self) -> Dropped | None:
        """What is kept since old checkpoints were dropped, returned once; None while they are, and if that failed."""
        if self._dropping is None or not self._dropping.done():
            return None
        dropping, self._dropping = self._dropping, None
        error = dropping.exception()
        if error is None:
            return dropping.result()
        if not isinstance(error, FreshetError):
            raise error
        self._log.warning("old checkpoints not removed; the next attempt will", reason=str(error))
        return None

    def close(self) -> None:
        """Waits for writes under way."""
        self._thread.shutdown()

    # ── inside ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def _write_if_ready(self, checkpoint: Underway) -> None:
        if checkpoint.is_ready and checkpoint.writing is None and checkpoint.failure is None:
            checkpoint.writing = self._thread.submit(self._write, checkpoint)

    def _write(self, checkpoint: Underway) -> tuple[CheckpointManifest, GateState]:
        """On the thread: makes the checkpoint exist, or removes its remains."""
        assert checkpoint.trained is not None
        files = [file for part in checkpoint.parts.values() for file in part.files]
        judged = judge(self._rule, self.gate, checkpoint.readings(self._rule.samples, self._field_names))
        try:
            state = DispatcherState(checkpoint.number, checkpoint.decided, checkpoint.trained, judged.state)
            files.append(write_state(self._storage, state))
            manifest = self._manifest(checkpoint, files[-1], judged)
            reach("before_manifest", checkpoint.decided.step)
            write_manifest(self._storage, manifest)
            reach("after_manifest", checkpoint.decided.step)
        except FreshetError:
            with suppress(FreshetError):  # it may have been written after all: if it stays, so do its files
                self._storage.delete(manifest_name(checkpoint.number))
                self._remove(checkpoint.number, files)
            raise
        return manifest, judged.state

    def _manifest(self, checkpoint: Underway, dispatcher: FilePart, judged: Judgement) -> CheckpointManifest:
        """Raises CheckpointDamaged if shards hold another number of rows than were assigned."""
        pruning = checkpoint.decided.pruning
        manifest = CheckpointManifest(
            run=self._run,
            number=checkpoint.number,
            step=checkpoint.decided.step,
            generation=checkpoint.decided.generation,
            at_seconds=time.time(),
            shards=tuple(checkpoint.parts[shard] for shard in range(checkpoint.shards)),
            dispatcher=dispatcher,
            is_publication=checkpoint.is_publication,
            timeline=checkpoint.timeline,
            verdict=judged.verdict,
            figures=judged.figures,
            are_new_keys_bare=checkpoint.decided.are_new_keys_bare,
            columns=(pruning.columns if pruning is not None else ()) or UNSET,
        )
        if manifest.rows != checkpoint.decided.rows:
            raise CheckpointDamaged(
                f"shards hold {manifest.rows} rows after step {manifest.step}, and {checkpoint.decided.rows} were "
                "given "
                "out; expected as many; see the logs of the shards"
            )
        return manifest

    def _drop_old(self) -> Dropped:
        """On the thread: removes old checkpoints."""
        retained = drop_old(self._storage, self._most)
        if retained.oldest == EMPTY_MODEL:
            return Dropped(retained, None)
        state = read_state(self._storage, read_manifest(self._storage, retained.oldest))
        return Dropped(retained, state.decided.positions)

    def _remove(self, number: int, files: Iterable[FilePart]) -> None:
        """On the thread: removes what was written for a failed checkpoint; files that it shares are kept."""
        for file in files:
            if file.name.startswith(f"{number:08d}/"):
                try:
                    self._storage.delete(file.name)
                except FreshetError as error:
                    self._log.warning("a file of a failed checkpoint is left", file=file.name, reason=str(error))

    def _count_failure(self, failure: CheckpointFailure) -> CheckpointFailure:
        self._meter.count("checkpoints_failed")
        facts = {"checkpoint": failure.number, "step": failure.step, "reason": failure.reason}
        self._log.error("checkpoint failed; training continues, and its content becomes part of the next one", **facts)
        return failure

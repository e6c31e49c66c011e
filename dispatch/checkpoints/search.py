"""Which checkpoint a recovery goes back to: the newest that is recorded, whole, and readable.

Damaged checkpoints are skipped for good; those that the storage does not return are tried again, and skipped for a
while (``dispatch/checkpoints/unreadable.py``).
"""

from dataclasses import dataclass

import structlog

from dispatch.checkpoints.state import DispatcherState, load_index, read_state
from dispatch.checkpoints.unreadable import UnreadableCheckpoints
from dispatch.errors import CheckpointUnreadable, CheckpointUnusable, NoCheckpoint
from dispatch.journal.run import RunJournal
from dispatch.placement.arrays import I64
from dispatch.placement.errors import DuplicateKeys
from dispatch.placement.rows.index import Index
from infra.base.errors import StorageError
from infra.base.storage import Storage
from ps.checkpoints.manifest import CheckpointManifest, manifest_numbers, read_manifest
from ps.errors import CheckpointDamaged
from ps.protocol import EMPTY_MODEL


@dataclass(frozen=True)
class UsableCheckpoint:
    """A checkpoint with what the dispatcher needs of it."""

    manifest: CheckpointManifest
    state: DispatcherState
    index: Index
    last_steps_R: I64
    """The step that last changed each row."""
    is_last: bool
    """Whether there is none after it, damaged or not."""


class CheckpointSearch:
    """The checkpoints of one run, as far as it can go back to them."""

    def __init__(self, storage: Storage, journal: RunJournal, is_replay: bool) -> None:
        """is_replay: whether a run is trained again, from its oldest checkpoint on."""
        self._storage = storage
        self._journal = journal
        self._is_replay = is_replay
        self.damaged: set[int] = set()
        """Checkpoints that cannot be used."""
        self._unreadable = UnreadableCheckpoints()
        self._log = structlog.get_logger()

    def find(self) -> UsableCheckpoint | None:
        """The best usable checkpoint, whose history the journal then has; None: the empty model.

        Raises CheckpointUnreadable if a checkpoint should be tried again, NoCheckpoint if none can be used and the
        journal does not reach back to the run's start.
        """
        number = EMPTY_MODEL
        try:
            for number in self._candidates():
                if (found := self._read(number)) is not None:
                    return found
        except StorageError as error:
            what = f"checkpoint {number}" if number else "which checkpoints there are"
            raise CheckpointUnreadable(f"{what} cannot be read: {error}", number) from error
        try:
            self._journal.read_again(EMPTY_MODEL)
        except CheckpointUnusable as error:
            raise self._no_checkpoint(error) from error
        return None

    def put_off(self, fault: CheckpointUnreadable) -> None:
        """Has the checkpoint tried again, a few times; then an older one is used for a while."""
        if fault.number and self._unreadable.note(fault.number, str(fault)):
            hint = "a checkpoint is skipped for a while; trying the one before"
            self._log.error(hint, checkpoint=fault.number, reason=str(fault))

    def _candidates(self) -> list[int]:
        """Numbers of checkpoints, the best first: the newest or, for a replay, the oldest, after the empty model."""
        if self._is_replay and self._journal.history.base.number == EMPTY_MODEL:
            return []
        on_record = self._journal.checkpoint_numbers() - self.damaged - self._unreadable.left_out()
        numbers = [number for number in manifest_numbers(self._storage) if number in on_record]
        return numbers if self._is_replay else numbers[::-1]

    def _read(self, number: int) -> UsableCheckpoint | None:
        """One checkpoint; None if it is damaged. Raises StorageError if it cannot be read."""
        try:
            manifest = read_manifest(self._storage, number)
            state = read_state(self._storage, manifest)
            saved = load_index(self._storage, manifest)
            index = Index.restore(saved.keys_R)
            is_last = number == manifest_numbers(self._storage)[-1]
            self._journal.read_again(number)
        except (CheckpointDamaged, CheckpointUnusable, DuplicateKeys) as error:
            self._log.error("a checkpoint cannot be used; trying the one before", checkpoint=number, reason=str(error))
            self.damaged.add(number)
            return None
        return UsableCheckpoint(manifest, state, index, saved.last_steps_R, is_last)

    def _no_checkpoint(self, error: CheckpointUnusable) -> CheckpointUnreadable | NoCheckpoint:
        """If checkpoints could not be read, they are tried again indefinitely; without any the run cannot continue."""
        reasons = list(self._unreadable.reasons.values())
        if reasons and not self._is_replay:
            self._unreadable.forget()
            return CheckpointUnreadable(f"no other checkpoint can be used: {'; '.join(reasons)}", EMPTY_MODEL)
        return NoCheckpoint(
            f"no checkpoint can be used, and the journal does not reach back to the run's start: {error}"
        )

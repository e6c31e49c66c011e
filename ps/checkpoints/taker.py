"""A shard's part of checkpoints: what it copies, which thread writes it, and which files the next one can build on.

A checkpoint goes through these steps, and their order is the guarantee:

1. Its flush is announced: the number of rows is noted, and dense weights are copied as they pass (ps/dense/lane.py).
2. The flush has been applied: the rows that changed since the last committed checkpoint are determined
   (ps/checkpoints/gather.py), by their last steps and, if chunks were pruned between rounds, by what was noted then.
3. Those rows are copied, a slice between two messages, and before they change again.
4. A thread publishes them for servers and writes them into a file, while training continues.
5. The file is durable, and the dispatcher learns of it and of the files that it builds on.
6. The dispatcher has written the manifest of the checkpoint: only now do the next checkpoints build on it.

A crash or a failure at any point costs this checkpoint and nothing else: its content becomes part of the next one.

A shard that ends removes the files that the dispatcher does not know of, since no checkpoint will name them: files that
were merged after the last checkpoint, or that belong to an abandoned checkpoint. Those of a shard that crashed are
removed when the run is resumed (``dispatch.checkpoints.retention.sweep``).
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from infra.base.errors import StorageError
from infra.base.faults import reach
from infra.base.storage import Storage
from infra.base.wire import NO_I64, truncate_reason
from ps.checkpoints.files import Columns, content_of, new_name, write_chunks
from ps.checkpoints.gather import ALL_FINITE, NonFinite, RowCopy
from ps.checkpoints.merge import first_to_merge, merge
from ps.checkpoints.publication import FilePublisher
from ps.checkpoints.restore import SavedPart
from ps.dense.range import DenseCopy
from ps.errors import CheckpointDamaged, OutOfOrder
from ps.phases import FLUSH
from ps.protocol import Announce, CheckpointFailed, CheckpointSaved, FilePart
from ps.store import NEVER, RowStore

LONGEST_CHAIN = 440
"""Most files of a checkpoint that one message can name; a longer chain starts again with all rows."""
WRITING_MILLISECONDS = 1
"""How late the end of a write may be noticed."""
Outcome = CheckpointSaved | CheckpointFailed
Chain = tuple[FilePart, ...]
"""Files, oldest first."""


@dataclass
class Taking:
    """A checkpoint, from its announcement on."""

    header: Announce
    rows: int
    """Rows that the shard held."""
    dense: DenseCopy
    chain: Chain = ()
    """Files that it builds on."""
    before: NonFinite = ALL_FINITE
    """Rows of these files with values that are not finite."""
    copy: RowCopy | None = None
    """The copy of its rows, once its flush has been applied."""
    written: "Future[FilePart] | None" = None

    @property
    def is_copied(self) -> bool:
        return self.copy is not None and self.copy.is_complete and self.dense.is_complete


@dataclass(frozen=True)
class RowsToSave:
    """Rows that were changed between two rounds: every checkpoint numbered above ``after`` contains the change."""

    after: int
    numbers: NDArray[np.int64] | None
    """None: all rows."""


@dataclass(frozen=True)
class Merging:
    """Files that are being merged into one."""

    parts: Chain
    merged: "Future[FilePart]"


class CheckpointTaker:
    """Takes one checkpoint at a time."""

    def __init__(
        self, storage: Storage | None, shard: int = 0, deltas: int = 8, publisher: FilePublisher | None = None
    ) -> None:
        """storage: None if no checkpoints are kept; deltas: files of changes before they are merged."""
        self.storage = storage
        self.publisher = publisher
        self._shard = shard
        self._deltas = deltas
        self._announced: dict[int, Taking] = {}
        self._taking: Taking | None = None
        self._saved: dict[int, SavedPart] = {}
        """Saved parts by checkpoint that are not committed yet."""
        self._committed: SavedPart | None = None
        self._changes: list[RowsToSave] = []
        """Changes that no committed checkpoint contains and that last steps do not show."""
        self._begun = 0
        """The highest checkpoint begun."""
        self._merging: Merging | None = None
        self._untold: list[Future[FilePart]] = []
        """Files that have not been reported as part of a checkpoint."""
        self._log = structlog.get_logger().bind(process="ps", shard=shard)
        self._threads = ThreadPoolExecutor(2, f"ps-{shard} checkpoints")  # one writes, one merges

    def check(self, header: Announce) -> None:
        """Raises OutOfOrder for a checkpoint that cannot be taken."""
        if header.checkpoint and (header.phase < FLUSH or self.storage is None):
            raise OutOfOrder(
                f"checkpoint {header.checkpoint} was announced in phase {header.phase}, and checkpoints are kept: "
                f"{self.storage is not None}; expected a flush, and a place for checkpoints; start the shard with "
                "checkpoints.url"
            )

    def announce(self, header: Announce, rows: int, dense: DenseCopy) -> None:
        """Notes the announcement of a flush after which a checkpoint is taken; rows: the number that the shard holds by
        then.
        """
        self._announced[header.checkpoint] = Taking(header, rows, dense)

    def begin(self, header: Announce, store: RowStore) -> Iterator[CheckpointFailed]:
        """Determines the rows of the checkpoint, just after its flush has been applied."""
        taking = self._announced.pop(header.checkpoint)
        if self._taking is not None:
            yield _failed(taking, "the checkpoint before is not over; let it end first")
            return
        base = self._committed
        has_changed_all = any(change.numbers is None for change in self._changes)
        if base is None or len(base.chain) >= LONGEST_CHAIN or has_changed_all:
            base = SavedPart(0, NEVER, 0, ())
        try:
            changed = [change.numbers for change in self._changes if change.numbers is not None]
            also = np.concatenate([NO_I64, *changed])
            taking.copy = RowCopy(store, base.step, base.rows, taking.rows, also)
        except MemoryError as error:
            yield _failed(taking, f"no memory for a copy of its rows: {error}; give the shard more")
            return
        taking.chain = base.chain
        taking.before = base.non_finite
        self._taking = taking
        self._begun = max(self._begun, header.checkpoint)

    @property
    def is_taking(self) -> bool:
        """Whether rows are being copied or written."""
        return self._taking is not None

    def change(self, numbers: NDArray[np.int64]) -> None:
        """Notes rows that were changed between two rounds, while no checkpoint was being taken."""
        if len(numbers) and self.storage is not None:
            self._changes.append(RowsToSave(self._begun, numbers))

    def change_all(self) -> None:
        """Notes that all rows were: the next checkpoints contain every row until one is committed."""
        if self.storage is not None:
            self._changes = [RowsToSave(self._begun, None)]

    def keep(self, changing: NDArray[np.int64]) -> None:
        """Must be called before rows change."""
        if self._taking is not None and self._taking.copy is not None:
            self._taking.copy.keep(changing)

    def go_on(self) -> Iterator[Outcome]:
        """Does a little of the work under way; yields messages for the dispatcher."""
        self._end_merging()
        taking = self._taking
        if taking is None or taking.copy is None:
            return
        if taking.written is not None:
            if taking.written.done():
                reach("after_file", taking.header.step)
                self._taking = None
                yield self._end(taking, taking.written)
        elif not taking.copy.is_complete:
            taking.copy.go_on()
            reach("gathering", taking.header.step)
        elif taking.is_copied:
            assert self.storage is not None
            columns = taking.copy.columns(taking.dense.whole)
            name = new_name(taking.header.checkpoint, "shard", self._shard)
            taking.written = self._threads.submit(self._write, self.storage, name, columns)
            self._untold.append(taking.written)

    def patience(self, milliseconds: int) -> int:
        """How long to wait for a message, at most that long, before doing more of the work."""
        taking = self._taking
        if taking is None:
            return milliseconds
        is_copying = taking.copy is not None and not taking.copy.is_complete
        return 0 if is_copying else min(milliseconds, WRITING_MILLISECONDS)

    def commit(self, checkpoint: int) -> None:
        """Notes that the checkpoint exists: the next ones build on it."""
        if self._committed is not None and checkpoint <= self._committed.checkpoint:
            return
        if checkpoint not in self._saved:
            raise OutOfOrder(
                f"checkpoint {checkpoint} was committed, and this shard saved {sorted(self._saved)}; expected one of "
                "those; the "
                "dispatcher must commit what every shard has saved"
            )
        self._committed = self._saved[checkpoint]
        self._saved = {number: saved for number, saved in self._saved.items() if number > checkpoint}
        self._changes = [change for change in self._changes if change.after >= checkpoint]
        self._begin_merging(self._committed)

    def abandon(self) -> None:
        """Drops what is under way, because a generation begins; a file that is still written
        belongs to no checkpoint.
        """
        self._announced.clear()
        self._taking = None

    def build_on(self, saved: SavedPart | None) -> None:
        """Notes which files hold the current model: those of a checkpoint, or none."""
        self._saved.clear()
        self._changes.clear()
        self._merging = None
        self._committed = saved

    def close(self) -> None:
        """Waits for writes under way, and removes the files that no checkpoint can name."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        for written in self._untold:
            if self.storage is not None and not written.cancelled() and written.exception() is None:
                with suppress(StorageError):  # a sweep will remove it
                    self.storage.delete(written.result().name)
        self._untold.clear()

    def _write(self, storage: Storage, name: str, columns: Columns) -> FilePart:
        """Runs on a thread. Servers get the content before it is on disk; it counts for them only once the manifest
        exists.
        """
        pieces = content_of(columns)
        if self.publisher is not None:
            self.publisher.publish(name, pieces)
        return write_chunks(storage, name, pieces, len(columns.numbers_K))

    def _end(self, taking: Taking, written: "Future[FilePart]") -> Outcome:
        header = taking.header
        try:
            chain = (*taking.chain, written.result())
        except StorageError as error:
            self._log.error(
                "checkpoint not saved; training continues",
                checkpoint=header.checkpoint,
                step=header.step,
                reason=str(error),
            )
            return _failed(taking, str(error))
        self._untold = [each for each in self._untold if not (each.done() and _has_failed_or_is_of(each, chain))]
        assert taking.copy is not None
        broken = taking.copy.non_finite(taking.before)
        non_finite = broken.values + int(np.count_nonzero(~np.isfinite(taking.dense.whole)))
        self._saved[header.checkpoint] = SavedPart(header.checkpoint, header.step, taking.rows, chain, broken)
        return CheckpointSaved(**_at(header), parts=list(chain), rows=taking.rows, non_finite=non_finite)

    def _begin_merging(self, saved: SavedPart) -> None:
        first = first_to_merge(saved.chain, self._deltas)
        if first is None or self._merging is not None:
            return
        assert self.storage is not None
        parts = saved.chain[first:]
        self._merging = Merging(
            parts, self._threads.submit(merge, self.storage, parts, saved.checkpoint, self._shard, first == 0)
        )
        self._untold.append(self._merging.merged)

    def _end_merging(self) -> None:
        if self._merging is None or not self._merging.merged.done():
            return
        merging, self._merging = self._merging, None
        try:
            merged = merging.merged.result()
        except (StorageError, CheckpointDamaged) as error:
            self._log.warning("files of checkpoints not merged", files=len(merging.parts), reason=str(error))
            if isinstance(
                error, CheckpointDamaged
            ):  # what is in memory is right: the next checkpoint begins a new chain
                self.build_on(None)
            return
        self._saved = {checkpoint: _shorter(saved, merging.parts, merged) for checkpoint, saved in self._saved.items()}
        if self._committed is not None:
            self._committed = _shorter(self._committed, merging.parts, merged)
        if self._taking is not None:
            self._taking.chain = _shortened(self._taking.chain, merging.parts, merged)


def _has_failed_or_is_of(written: "Future[FilePart]", chain: Chain) -> bool:
    return written.exception() is not None or written.result() in chain


def _shorter(saved: SavedPart, parts: Chain, merged: FilePart) -> SavedPart:
    return saved._replace(chain=_shortened(saved.chain, parts, merged))


def _shortened(chain: Chain, parts: Chain, merged: FilePart) -> Chain:
    """The chain with one file in place of those that were merged."""
    for first in range(len(chain) - len(parts) + 1):
        if chain[first : first + len(parts)] == parts:
            return (*chain[:first], merged, *chain[first + len(parts) :])
    return chain


def _at(header: Announce) -> dict[str, Any]:
    return {"run": header.run, "generation": header.generation, "step": header.step, "checkpoint": header.checkpoint}


def _failed(taking: Taking, reason: str) -> CheckpointFailed:
    return CheckpointFailed(**_at(taking.header), reason=truncate_reason(reason))

"""Merges files of a checkpoint into one, so that chains of changes stay short.

Only files are read, never memory that training changes, and only a block of rows at a time. When a chain has too many
files, the newest ones are merged, back to the oldest one that is not much larger than all files after it. Rows are thus
rewritten only together with a good share of new rows, and the total bytes written are a small multiple (logarithmic in
the size of the model) of the bytes that changed. If nothing qualifies, each file is much larger than all that follow,
and there are few of them.

Legend: K rows of the merged file.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from infra.base.storage import Storage
from ps.checkpoints.files import BLOCK_BYTES, ENTRIES, RowFile, header_of, new_name, verify, write_chunks
from ps.errors import CheckpointDamaged
from ps.protocol import FilePart

MUCH_LARGER = 4
COLUMNS = ENTRIES[:-1]
"""The columns that are merged; dense weights are in the last file of a checkpoint, which is never a merged one."""


def first_to_merge(chain: Sequence[FilePart], deltas: int) -> int | None:
    """The first file of a chain to merge; None: the chain is short enough, or each file is much larger than all after
    it.
    """
    if len(chain) <= deltas + 1:
        return None
    sizes = [part.nbytes for part in chain]
    return next((i for i in range(len(chain) - 1) if sizes[i] <= MUCH_LARGER * sum(sizes[i + 1 :])), None)


def merge(storage: Storage, parts: Sequence[FilePart], checkpoint: int, shard: int, is_base: bool) -> FilePart:
    """Writes the rows of these files, oldest first, into one file; if several have a row, the last one counts."""
    for part in parts:
        verify(storage, part)
    with ExitStack() as opened:
        files = [opened.enter_context(RowFile(storage, part)) for part in parts]
        for file in files:
            file.keep()
        merged = _Merged(files)
        rows, checksum = merged.survey()
        shapes = [files[-1].entries[name] for name in COLUMNS]
        arrays = [(entry.dtype, (rows, *entry.shape[1:])) for entry in shapes]
        header = header_of([*arrays, (shapes[3].dtype, (0,))], checksum)
        name = new_name(checkpoint, "base" if is_base else "merged", shard)
        return write_chunks(storage, name, _chain(header, merged), rows)


def _chain(header: bytes, merged: "_Merged") -> Iterator[Any]:
    yield header
    for name in COLUMNS:
        yield from merged.column(name)


class _Block(NamedTuple):
    """Rows of one range of numbers."""

    numbers_K: NDArray[np.int64]
    file_K: NDArray[np.int64]
    """The file whose row counts."""
    spans: list[tuple[int, int]]
    """The rows of each file that are in the range."""
    place_K: NDArray[np.int64]
    """The place of that row within its file's span."""


class _Merged:
    """Several files seen as one, a block of row numbers at a time."""

    def __init__(self, files: Sequence[RowFile]) -> None:
        self._files = files
        row_bytes = sum(files[-1].entries[name].row_bytes for name in COLUMNS)
        self._block_rows = max(1, BLOCK_BYTES // row_bytes)
        _check_same_shape(files)

    def survey(self) -> tuple[int, str]:
        """The number of rows, and the checksum of their numbers and keys."""
        rows = 0
        digest = xxhash.xxh3_128()
        for name in ("numbers", "keys"):
            for chunk in self.column(name):
                digest.update(chunk.data)
                rows += len(chunk) if name == "numbers" else 0
        return rows, digest.hexdigest()

    def column(self, name: str) -> Iterator[NDArray[Any]]:
        """A column of all rows, by row number, in blocks."""
        entry = self._files[-1].entries[name]
        for block in self._blocks():
            if name == "numbers":
                yield block.numbers_K
                continue
            out = np.empty((len(block.numbers_K), *entry.shape[1:]), entry.dtype)
            for number, (file, (first, end)) in enumerate(zip(self._files, block.spans, strict=True)):
                counts_K = block.file_K == number
                if counts_K.any():
                    out[counts_K] = file.read(name, first, end)[block.place_K[counts_K]]
            if out.size:
                yield out

    def _blocks(self) -> Iterator[_Block]:
        """The blocks that have rows, by ascending numbers."""
        starts = [0] * len(self._files)
        while (low := self._lowest(starts)) is not None:
            file_K = np.full(self._block_rows, -1)
            place_K = np.zeros(self._block_rows, np.int64)
            spans = []
            for number, file in enumerate(self._files):
                numbers = self._numbers(file, starts[number])
                offsets = numbers[: np.searchsorted(numbers, low + self._block_rows)] - low
                file_K[offsets], place_K[offsets] = number, np.arange(offsets.size)
                spans.append((starts[number], starts[number] + offsets.size))
                starts[number] += offsets.size
            (used,) = np.nonzero(file_K >= 0)
            yield _Block(low + used, file_K[used], spans, place_K[used])

    def _numbers(self, file: RowFile, start: int) -> NDArray[np.int64]:
        """The next row numbers of a file: at least those of one block."""
        return file.read("numbers", start, min(start + self._block_rows, file.part.rows))

    def _lowest(self, starts: list[int]) -> int | None:
        """The lowest row number that has not been in a block yet."""
        left = [(file, start) for file, start in zip(self._files, starts, strict=True) if start < file.part.rows]
        return min((int(file.read("numbers", start, start + 1)[0]) for file, start in left), default=None)


def _check_same_shape(files: Sequence[RowFile]) -> None:
    shapes = {tuple((file.entries[n].dtype, file.entries[n].shape[1:]) for n in COLUMNS) for file in files}
    if len(shapes) > 1:
        raise CheckpointDamaged(
            f"files {[file.part.name for file in files]} of one checkpoint have rows of different shapes; expected "
            "one; "
            "go back to another checkpoint"
        )

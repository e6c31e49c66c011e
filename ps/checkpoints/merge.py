"""Merges files of a checkpoint into one, so that chains of changes stay short.

Only files are read, never memory that training changes, and only a block of rows at a time. When a chain has too many
files, the newest ones are merged, back to the oldest one that is not much larger than all files after it. Rows are thus
rewritten only together with a good share of new rows, and the total bytes written are a small multiple (logarithmic in
the size of the model) of the bytes that changed. If nothing qualifies, each file is much larger than all that follow,
and there are few of them.

Legend: K rows of the merged file, X floats of a packed row if nothing of it is pruned.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from infra.base.storage import Storage
from ps.checkpoints.files import BLOCK_BYTES, MASKS, RowFile, header_of, new_name, verify, write_chunks
from ps.errors import CheckpointDamaged
from ps.packed import PACKED, PackedWidths
from ps.protocol import FilePart
from ps.utilities import count_live

MUCH_LARGER = 4
DENSE = "dense"
"""The entry that is not merged: dense weights are in the last file of a checkpoint, which is never a merged one."""


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
        rows, live, checksum = merged.survey()
        header = header_of(merged.described(rows, live), checksum, files[-1].widths)
        name = new_name(checkpoint, "base" if is_base else "merged", shard)
        return write_chunks(storage, name, _chain(header, merged), rows)


def _chain(header: bytes, merged: "_Merged") -> Iterator[Any]:
    yield header
    for name in merged.columns:
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
        self._entries = files[-1].entries
        self._widths = files[-1].widths
        self.columns = [name for name in self._entries if name != DENSE]
        """The columns that are merged."""
        self._block_rows = max(1, BLOCK_BYTES // sum(map(self._most_bytes, self.columns)))
        _check_same_shape(files)

    def survey(self) -> tuple[int, int, str]:
        """The number of rows, and of their live chunks if rows are packed; the checksum of numbers and keys."""
        rows = 0
        live = sum(map(count_live, self.column(MASKS))) if self._widths is not None else 0
        digest = xxhash.xxh3_128()
        for name in ("numbers", "keys"):
            for chunk in self.column(name):
                digest.update(chunk.data)
                rows += len(chunk) if name == "numbers" else 0
        return rows, live, digest.hexdigest()

    def described(self, rows: int, live: int) -> Iterator[tuple[np.dtype[Any], tuple[int, ...]]]:
        """Types and shapes of all arrays of the merged file."""
        for name, entry in self._entries.items():
            if name == DENSE:
                yield entry.dtype, (0,)
            elif self._widths is not None and name in PACKED:
                yield entry.dtype, (self._widths.before(name, rows, live),)
            else:
                yield entry.dtype, (rows, *entry.shape[1:])

    def column(self, name: str) -> Iterator[NDArray[Any]]:
        """A column of all rows, by row number, in blocks."""
        entry = self._entries[name]
        for block in self._blocks():
            if name == "numbers":
                yield block.numbers_K
                continue
            if self._widths is not None and name in PACKED:
                if (packed := self._packed(name, block, self._widths)).size:
                    yield packed
                continue
            out = np.empty((len(block.numbers_K), *entry.shape[1:]), entry.dtype)
            for number, (file, (first, end)) in enumerate(zip(self._files, block.spans, strict=True)):
                counts_K = block.file_K == number
                if counts_K.any():
                    out[counts_K] = file.read(name, first, end)[block.place_K[counts_K]]
            if out.size:
                yield out

    def _packed(self, name: str, block: _Block, widths: PackedWidths) -> NDArray[Any]:
        """A column of packed rows, flat: each is put to the left of a row that is as wide as any."""
        rows_KX = np.empty((len(block.numbers_K), widths.most(name)), self._entries[name].dtype)
        floats_K = np.empty(len(block.numbers_K), np.int64)
        for number, (file, (first, end)) in enumerate(zip(self._files, block.spans, strict=True)):
            counts_K = block.file_K == number
            if counts_K.any():
                floats = widths.each(name, file.masks[first:end])
                rows = np.empty((end - first, rows_KX.shape[1]), rows_KX.dtype)
                rows[_is_packed(rows, floats)] = file.read(name, first, end)
                rows_KX[counts_K] = rows[block.place_K[counts_K]]
                floats_K[counts_K] = floats[block.place_K[counts_K]]
        return rows_KX[_is_packed(rows_KX, floats_K)]

    def _most_bytes(self, name: str) -> int:
        """Bytes of a column of one row, at most."""
        entry = self._entries[name]
        if self._widths is not None and name in PACKED:
            return self._widths.most(name) * entry.dtype.itemsize
        return entry.row_bytes

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


def _is_packed(rows_KX: NDArray[Any], floats_K: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which places of rows have a float, if each row has so many on its left."""
    return np.arange(rows_KX.shape[1]) < floats_K[:, None]


def _check_same_shape(files: Sequence[RowFile]) -> None:
    shapes = {
        (file.widths, *((name, entry.dtype, entry.shape[1:]) for name, entry in file.entries.items())) for file in files
    }
    if len(shapes) > 1:
        raise CheckpointDamaged(
            f"files {[file.part.name for file in files]} of one checkpoint have rows of different shapes; expected "
            "one; "
            "go back to another checkpoint"
        )

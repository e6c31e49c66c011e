"""One shard's rows if chunks of them can be pruned: only what is live takes memory.

To everybody else a row is as wide as its shape says (``RowShape``): columns of pruned chunks, and columns that all
rows have dropped, read as zeros, their accumulators as start values, and the last column is the mask. In memory a row
is

* a head, [wide | accumulators of the wide column or of the whole row | utilities], which it always has;
* for each chunk the place in a pool (ps/pool.py), NOWHERE if the chunk is pruned: that is the mask;
* in that place, [kept columns | their accumulators, if each has one].

Masks change when a row begins, is forgotten or loaded, and in ``set_masks``; never when a row is written.

Legend: K requested rows, T columns of value and state, N places, D embedding columns.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from infra.base.kernels import kernel
from ps.chunks import Chunks, chunk_at, copy_bytes
from ps.columns import KeptColumns, is_kept, may_keep
from ps.config import RowConfig
from ps.errors import CheckpointDamaged, OutOfOrder
from ps.packed import Masks, Packing
from ps.pool import Pool
from ps.settling import chunking_of
from ps.start import start_rows
from ps.store import RowStore
from ps.utilities import all_live, count_live

NOWHERE = -1
"""The place of a pruned chunk."""


class Layout(NamedTuple):
    """Where the columns of a row are kept, as kernels take it."""

    chunks: int
    width: int
    """Columns of a chunk."""
    kept: int
    """Those of them that have not been dropped."""
    columns: NDArray[np.int64]
    """The embedding columns that have not been dropped, chunk after chunk."""
    value: int
    has_wide: bool
    has_accumulators: bool
    """Whether each embedding column has an accumulator, which is kept with it."""
    head_state: int
    """The first of the row's state columns that are kept in the head: all from here on but the mask."""
    total: int
    initial: Any
    """The accumulator of a pruned column, of the rows' type."""

    @property
    def stored(self) -> int:
        """Columns of a chunk in the pool."""
        return self.kept * (1 + self.has_accumulators)

    @property
    def head(self) -> int:
        """Columns of a head."""
        return self.has_wide + self.total - 1 - self.head_state


class Tables(NamedTuple):
    """The memory of all rows, as kernels take it: addresses, and how many rows or places each block has."""

    heads: NDArray[np.int64]
    places: NDArray[np.int64]
    chunk_rows: int
    head: int
    pool: NDArray[np.int64]
    block_places: int
    stored_bytes: int
    itemsize: int
    dtype: Any


def layout_of(config: RowConfig, kept: KeptColumns = ()) -> Layout:
    shape = config.shape()
    columns = np.flatnonzero(is_kept(shape.dim, kept))
    has_accumulators = config.optimizer == "adagrad"
    return Layout(
        chunks=config.chunks,
        width=config.dim // config.chunks,
        kept=len(columns) // config.chunks,
        columns=columns,
        value=shape.value,
        has_wide=config.wide,
        has_accumulators=has_accumulators,
        head_state=shape.value + (shape.dim if has_accumulators else 0),
        total=shape.total,
        initial=np.dtype(config.float_dtype).type(config.initial_accumulator),
    )


@kernel
def head_at(tables: Any, number: int) -> Any:
    """Inside a kernel: the head of a row."""
    chunk = chunk_at(tables.heads, number // tables.chunk_rows, tables.chunk_rows, tables.head, tables.dtype)
    return chunk[number % tables.chunk_rows]


@kernel
def places_at(tables: Any, chunks: int, number: int) -> Any:
    """Inside a kernel: the places of a row's chunks."""
    chunk = chunk_at(tables.places, number // tables.chunk_rows, tables.chunk_rows, chunks, np.int32)
    return chunk[number % tables.chunk_rows]


@kernel
def _address_of(tables: Any, place: int) -> Any:
    """Inside a kernel: the address of what is stored in a place."""
    return tables.pool[place // tables.block_places] + place % tables.block_places * tables.stored_bytes


@kernel
def stored_at(tables: Any, place: int) -> Any:
    """Inside a kernel: what is stored in a place."""
    stored = tables.stored_bytes // tables.itemsize
    block = chunk_at(tables.pool, place // tables.block_places, tables.block_places, stored, tables.dtype)
    return block[place % tables.block_places]


@kernel
def mask_of(places: Any) -> int:
    """Inside a kernel: the mask of a row with these places."""
    mask = 0
    for chunk in range(places.shape[0]):
        if places[chunk] != NOWHERE:
            mask |= 1 << chunk
    return mask


@kernel
def _unpack(layout: Any, tables: Any, numbers_K: Any, out: Any, address: int) -> None:
    """Copies rows to ``out``, which is at the address, as wide as it is: value and state, or only the value."""
    is_full = out.shape[1] > layout.value
    dim = layout.chunks * layout.width
    itemsize = tables.itemsize
    chunk_bytes = layout.width * itemsize
    for k in range(numbers_K.shape[0]):
        head = head_at(tables, numbers_K[k])
        places = places_at(tables, layout.chunks, numbers_K[k])
        for chunk in range(layout.chunks):
            first = chunk * layout.width
            has_accumulators = is_full and layout.has_accumulators
            if places[chunk] == NOWHERE or layout.kept < layout.width:
                for c in range(layout.width):
                    out[k, first + c] = 0
                if has_accumulators:
                    for c in range(layout.width):
                        out[k, layout.value + first + c] = layout.initial
            if places[chunk] == NOWHERE:
                continue
            if layout.kept < layout.width:
                stored_X = stored_at(tables, places[chunk])
                for c in range(layout.kept):
                    column = layout.columns[chunk * layout.kept + c]
                    out[k, column] = stored_X[c]
                    if has_accumulators:
                        out[k, layout.value + column] = stored_X[layout.kept + c]
                continue
            stored = _address_of(tables, places[chunk])
            target = address + (k * out.shape[1] + first) * itemsize
            copy_bytes(target, stored, chunk_bytes)  # type: ignore[call-arg]
            if has_accumulators:
                target += layout.value * itemsize
                copy_bytes(target, stored + chunk_bytes, chunk_bytes)
        if layout.has_wide:
            out[k, dim] = head[0]
        if is_full:
            for c in range(layout.head_state, layout.total - 1):
                out[k, c] = head[layout.has_wide + c - layout.head_state]
            out[k, layout.total - 1] = mask_of(places)


@kernel
def _pack(layout: Any, tables: Any, numbers_K: Any, address: Any) -> None:
    """Writes rows, which lie one after the other at an address; of chunks only the live ones."""
    rows_KT = chunk_at(address, 0, numbers_K.shape[0], layout.total, tables.dtype)
    dim = layout.chunks * layout.width
    itemsize = tables.itemsize
    chunk_bytes = layout.width * itemsize
    for k in range(numbers_K.shape[0]):
        head = head_at(tables, numbers_K[k])
        places = places_at(tables, layout.chunks, numbers_K[k])
        for chunk in range(layout.chunks):
            if places[chunk] == NOWHERE:
                continue
            if layout.kept < layout.width:
                stored_X = stored_at(tables, places[chunk])
                for c in range(layout.kept):
                    column = layout.columns[chunk * layout.kept + c]
                    stored_X[c] = rows_KT[k, column]
                    if layout.has_accumulators:
                        stored_X[layout.kept + c] = rows_KT[k, layout.value + column]
                continue
            stored = _address_of(tables, places[chunk])
            source = address[0] + (k * layout.total + chunk * layout.width) * itemsize
            copy_bytes(stored, source, chunk_bytes)  # type: ignore[call-arg]
            if layout.has_accumulators:
                source += layout.value * itemsize
                copy_bytes(stored + chunk_bytes, source, chunk_bytes)
        if layout.has_wide:
            head[0] = rows_KT[k, dim]
        for c in range(layout.head_state, layout.total - 1):
            head[layout.has_wide + c - layout.head_state] = rows_KT[k, c]


@kernel
def _masks(tables: Any, chunks: int, numbers_K: Any, masks_K: Any) -> None:
    for k in range(numbers_K.shape[0]):
        masks_K[k] = mask_of(places_at(tables, chunks, numbers_K[k]))


@kernel
def _free_places(tables: Any, chunks: int, numbers_K: Any, masks_K: Any, freed_N: Any) -> int:
    """Prunes live chunks that are not in the masks; returns how many, and notes their places."""
    count = 0
    for k in range(numbers_K.shape[0]):
        places = places_at(tables, chunks, numbers_K[k])
        for chunk in range(chunks):
            if places[chunk] != NOWHERE and not masks_K[k] >> chunk & 1:
                freed_N[count] = places[chunk]
                places[chunk] = NOWHERE
                count += 1
    return count


@kernel
def _give_places(tables: Any, chunks: int, numbers_K: Any, masks_K: Any, taken_N: Any) -> int:
    """Gives places to pruned chunks that are in the masks; returns how many it gave."""
    count = 0
    for k in range(numbers_K.shape[0]):
        places = places_at(tables, chunks, numbers_K[k])
        for chunk in range(chunks):
            if places[chunk] == NOWHERE and masks_K[k] >> chunk & 1:
                places[chunk] = taken_N[count]
                count += 1
    return count


@kernel
def _follow_moves(tables: Any, chunks: int, rows: int, live: int, moved_N: Any) -> None:
    """Corrects the places of what was moved from beyond the live ones."""
    for number in range(rows):
        places = places_at(tables, chunks, number)
        for chunk in range(chunks):
            if places[chunk] >= live:
                places[chunk] = moved_N[places[chunk] - live]


@kernel
def _narrow(tables: Any, chunks: int, width: int, rows: int, columns_D: Any) -> None:
    """Moves the kept columns of every live chunk to the front of its place, and their accumulators behind them."""
    kept = columns_D.size // chunks
    for number in range(rows):
        places = places_at(tables, chunks, number)
        for chunk in range(chunks):
            if places[chunk] == NOWHERE:
                continue
            stored_X = stored_at(tables, places[chunk])
            for half in range(2):  # what is read next is never in front of what has been written
                for c in range(kept):
                    column = columns_D[chunk * kept + c] - chunk * width
                    stored_X[half * kept + c] = stored_X[half * width + column]


def stored_reference(config: RowConfig, rows_KT: NDArray[Any], kept: KeptColumns = ()) -> NDArray[Any]:
    """What a store that holds these rows gives back, in plain numpy: pruned chunks are as if never trained, and so are
    columns that were dropped.
    """
    shape = config.shape()
    width = config.dim // config.chunks
    stored_KT = rows_KT.copy()
    for row_T, mask in zip(stored_KT, rows_KT[:, -1].astype(int), strict=True):
        for chunk in range(config.chunks):
            if not mask >> chunk & 1:
                first = chunk * width
                row_T[first : first + width] = 0
                if config.optimizer == "adagrad":
                    row_T[shape.value + first : shape.value + first + width] = config.initial_accumulator
    (dropped,) = np.nonzero(~is_kept(shape.dim, kept))
    stored_KT[:, dropped] = 0
    if config.optimizer == "adagrad":
        stored_KT[:, shape.value + dropped] = config.initial_accumulator
    return stored_KT


class PrunedStore(RowStore):
    """Rows by number, of which chunks can be pruned."""

    def __init__(self, config: RowConfig, seed: int, chunk_rows: int, kept: KeptColumns = ()) -> None:
        super().__init__(config, seed, chunk_rows)
        self.packing = Packing(config, kept)
        self.chunking = chunking_of(config)
        self._layout = layout_of(config, kept)
        self._heads = Chunks(chunk_rows, self._layout.head, self.dtype)
        self._places = Chunks(chunk_rows, config.chunks, np.int32, fill=NOWHERE)
        self._pool = Pool(chunk_rows, self._layout.stored, self.dtype)

    @property
    def live(self) -> int:
        """Chunks that are live."""
        return self._pool.live

    @property
    def nbytes(self) -> int:
        """Bytes of heads, places and chunks."""
        head = self._layout.head * self.dtype.itemsize + self._places.columns * self._places.dtype.itemsize
        return len(self._places.addresses) * self.chunk_rows * head + self._pool.nbytes

    @property
    def layout(self) -> Layout:
        return self._layout

    @property
    def tables(self) -> Tables:
        """The memory of the rows; valid until the store changes."""
        return Tables(
            heads=self._heads.addresses,
            places=self._places.addresses,
            chunk_rows=self.chunk_rows,
            head=self._layout.head,
            pool=self._pool.addresses,
            block_places=self._pool.block_places,
            stored_bytes=self._layout.stored * self.dtype.itemsize,
            itemsize=self.dtype.itemsize,
            dtype=self.dtype,
        )

    def gather(self, numbers_K: NDArray[np.int64], out: NDArray[Any]) -> None:
        self.check(numbers_K)
        assert out.dtype == self.dtype, f"{out.dtype} asked of rows of {self.dtype}"
        assert out.flags.c_contiguous, "rows are copied one after the other"
        assert out.shape[0] == len(numbers_K), f"{out.shape} has no place for {len(numbers_K)} rows"
        assert out.shape[1] in (self.shape.value, self.shape.total), f"{out.shape} is neither a value nor a row"
        _unpack(self._layout, self.tables, numbers_K, out, out.ctypes.data)

    def write(self, numbers_K: NDArray[np.int64], rows_KT: NDArray[Any]) -> None:
        """Replaces value and state. Raises OutOfOrder, and writes nothing, if a mask is not that of its row."""
        self.check(numbers_K)
        is_other_K = rows_KT[:, -1] != self.masks(numbers_K)
        if is_other_K.any():
            k = int(np.argmax(is_other_K))
            raise OutOfOrder(
                f"row number {numbers_K[k]} was written with the mask {rows_KT[k, -1]}, and {is_other_K.sum()} of "
                f"{len(numbers_K)} with another one than theirs; expected {self.masks(numbers_K[k : k + 1])[0]}, as "
                "masks change only when chunks are pruned; the run must go back to a checkpoint"
            )
        self._pack(numbers_K, rows_KT)

    def masks(self, numbers_K: NDArray[np.int64]) -> Masks:
        self.check(numbers_K)
        masks_K = np.empty(len(numbers_K), np.uint8)
        _masks(self.tables, self._layout.chunks, numbers_K, masks_K)
        return masks_K

    def set_masks(self, numbers_K: NDArray[np.int64], masks_K: Masks) -> None:
        """Frees the places of chunks that are not in the masks, and gives places to those that are.

        What a chunk that was pruned holds is undefined until it is written.
        """
        before_K = self.masks(numbers_K)
        chunks = self._layout.chunks
        freed_N = np.empty(count_live(before_K & ~masks_K), np.int32)
        freed = _free_places(self.tables, chunks, numbers_K, masks_K, freed_N)
        self._pool.give(freed_N[:freed])
        taken_N = self._pool.take(count_live(masks_K & ~before_K))
        given = _give_places(self.tables, chunks, numbers_K, masks_K, taken_N)
        self._pool.give(taken_N[given:])  # none, unless a number occurs twice

    def bring_back(self, numbers_K: NDArray[np.int64], brought_K: Masks) -> None:
        """Gives these pruned chunks their start values; all else stays as it is."""
        rows_KT = np.empty((len(numbers_K), self.shape.total), self.dtype)
        self.gather(numbers_K, rows_KT)
        start_KT = start_rows(self._config, self._seed, self.keys(numbers_K))
        width = self._layout.width
        for chunk in range(self._layout.chunks):
            (back,) = np.nonzero(brought_K >> chunk & 1)
            columns = slice(chunk * width, (chunk + 1) * width)
            rows_KT[back, columns] = start_KT[back, columns]
        rows_KT[:, -1] = rows_KT[:, -1].astype(np.uint8) | brought_K
        self._put(numbers_K, rows_KT)

    def drop_columns(self, kept: KeptColumns) -> None:
        """Drops all embedding columns but these of every row, and gives their memory back to the system.

        Raises OutOfOrder unless none has been dropped before, as many of each chunk stay, and each has an accumulator.
        """
        layout = self._layout
        if layout.kept < layout.width or not may_keep(self._config, kept):
            raise OutOfOrder(
                f"{len(kept)} columns are to stay of rows that have {layout.kept * layout.chunks} of "
                f"{self.shape.dim}; expected rows of the optimizer adagrad that have all, and as many columns of each "
                "of their chunks, ascending; the run must go back to a checkpoint"
            )
        narrow = layout_of(self._config, kept)
        _narrow(self.tables, layout.chunks, layout.width, len(self), narrow.columns)
        self._pool.narrow(narrow.stored)
        self._layout = narrow
        self.packing = Packing(self._config, kept)

    def compact(self) -> None:
        """Gives memory of pruned chunks back to the system."""
        moved_N = self._pool.compact()
        _follow_moves(self.tables, self._layout.chunks, len(self), self._pool.live, moved_N)

    def _grow(self, length: int) -> None:
        self._heads.grow(length)
        self._places.grow(length)

    def _put(self, numbers_K: NDArray[np.int64], rows_KT: NDArray[Any]) -> None:
        given_K = rows_KT[:, -1]
        is_mask_K = (given_K >= 0) & (given_K <= all_live(self._layout.chunks)) & (given_K % 1 == 0)
        if not is_mask_K.all():
            k = int(np.argmin(is_mask_K))
            raise CheckpointDamaged(
                f"row number {numbers_K[k]} has the mask {given_K[k]}; expected whole numbers up to "
                f"{all_live(self._layout.chunks)}; go back to another checkpoint"
            )
        self.set_masks(numbers_K, given_K.astype(np.uint8))
        self._pack(numbers_K, rows_KT)

    def _pack(self, numbers_K: NDArray[np.int64], rows_KT: NDArray[Any]) -> None:
        assert rows_KT.dtype == self.dtype, f"{rows_KT.dtype} given to rows of {self.dtype}"
        assert rows_KT.shape == (len(numbers_K), self.shape.total), f"{rows_KT.shape} for {len(numbers_K)} rows"
        rows = np.ascontiguousarray(rows_KT)
        address = np.array([rows.ctypes.data])  # the same kernel for arrays that may not be written
        _pack(self._layout, self.tables, numbers_K, address)

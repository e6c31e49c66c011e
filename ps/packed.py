"""Rows on their way between shards and workers, and in files: columns of pruned chunks and dropped ones stay behind.

A row with the mask m travels as the columns that ``Packing`` lists for m, in order, and its mask as one byte beside it.
Which columns all rows have dropped (``KeptColumns``) both sides know before.
Without chunks rows travel whole and need no masks. In files values and state are apart, as readers need only one of
them; ``PackedWidths`` says how many floats each row has there.

Legend: K rows, X columns of a row or of its value, M masks, L floats of all packed rows.
"""

from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from infra.base.errors import WireError
from infra.base.kernels import kernel
from ps.columns import KeptColumns, is_kept
from ps.config import RowConfig
from ps.utilities import all_live, count_live

Masks = NDArray[np.uint8]
PACKED = ("values", "state")
"""The parts of rows that are packed in files."""
Width = Annotated[int, msgspec.Meta(ge=0, le=1 << 18)]


@kernel
def _pack(rows_KX: Any, masks_K: Any, travels_MX: Any, packed_L: Any) -> None:
    at = 0
    for k in range(rows_KX.shape[0]):
        travels_X = travels_MX[masks_K[k]]
        for x in range(rows_KX.shape[1]):
            if travels_X[x]:
                packed_L[at] = rows_KX[k, x]
                at += 1


@kernel
def _unpack(packed_L: Any, masks_K: Any, travels_MX: Any, rows_KX: Any) -> None:
    """Fills in the columns that travel."""
    at = 0
    for k in range(rows_KX.shape[0]):
        travels_X = travels_MX[masks_K[k]]
        for x in range(rows_KX.shape[1]):
            if travels_X[x]:
                rows_KX[k, x] = packed_L[at]
                at += 1


@kernel
def _pack_at(rows_KT: Any, masks_K: Any, travels_MT: Any, starts_K: Any, packed_L: Any) -> None:
    """Packs each row into a place of its own."""
    for k in range(rows_KT.shape[0]):
        travels_T = travels_MT[masks_K[k]]
        at = starts_K[k]
        for t in range(rows_KT.shape[1]):
            if travels_T[t]:
                packed_L[at] = rows_KT[k, t]
                at += 1


def pack_reference(rows_KX: NDArray[Any], masks_K: Masks, travels_MX: NDArray[np.bool_]) -> NDArray[Any]:
    """Packed rows, in plain numpy."""
    return rows_KX[travels_MX[masks_K]]


class PackedWidths(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many floats packed rows have in a file: some in any case, and so many more for each live chunk."""

    chunks: Annotated[int, msgspec.Meta(ge=1, le=8)]
    values: Width
    values_by_chunk: Width
    state: Width
    """Without the mask."""
    state_by_chunk: Width

    def most(self, part: str) -> int:
        """Floats of a row of which nothing is pruned."""
        return self.before(part, 1, self.chunks)

    def before(self, part: str, rows: int, live: int) -> int:
        """Floats of so many rows with so many live chunks."""
        always, by_chunk = self._widths(part)
        return rows * always + live * by_chunk

    def each(self, part: str, masks_K: Masks) -> NDArray[np.int64]:
        """Floats of each row."""
        always, by_chunk = self._widths(part)
        return always + by_chunk * np.bitwise_count(masks_K).astype(np.int64)

    def floats(self, part: str, masks_K: Masks) -> int:
        """Floats of all rows with these masks."""
        return self.before(part, len(masks_K), count_live(masks_K))

    def starts(self, part: str, rows_K: NDArray[np.int64], live_K: NDArray[np.int64]) -> NDArray[np.int64]:
        """The floats before each of some rows, before which there are so many rows with so many live chunks."""
        always, by_chunk = self._widths(part)
        return rows_K * always + live_K * by_chunk

    def _widths(self, part: str) -> tuple[int, int]:
        return (self.values, self.values_by_chunk) if part == "values" else (self.state, self.state_by_chunk)


class Packing:
    """How rows of some settings travel."""

    def __init__(self, config: RowConfig, kept: KeptColumns = ()) -> None:
        shape = config.shape()
        self._shape = shape
        self._dtype = np.dtype(config.float_dtype)
        self._stays_T = np.zeros(shape.total, self._dtype)
        """What the columns that stay behind hold."""
        self._stays_T[shape.value : shape.value + shape.optimizer_state] = config.initial_accumulator
        masks_M1 = np.arange(all_live(shape.chunks) + 1)[:, None]
        width = shape.dim // max(1, shape.chunks)
        is_live_MD = (masks_M1 >> np.arange(shape.dim) // width & 1).astype(np.bool_) if shape.chunks else True
        is_live_MD = is_live_MD & is_kept(shape.dim, kept)
        self._travels_MT = np.ones((len(masks_M1), shape.total), np.bool_)
        self._travels_MT[:, : shape.dim] = is_live_MD
        if config.optimizer == "adagrad":
            self._travels_MT[:, shape.value : shape.value + shape.dim] = is_live_MD
        if shape.chunks:
            self._travels_MT[:, -1] = False
        self._travels_MW = np.ascontiguousarray(self._travels_MT[:, : shape.value])
        self._floats_M = {True: self._travels_MT.sum(axis=1), False: self._travels_MW.sum(axis=1)}
        """Floats of a packed row by its mask, with state and without."""
        self._travels_MS = np.ascontiguousarray(self._travels_MT[:, shape.value :])
        is_value_T = np.arange(shape.total) < shape.value
        self._values_MT = self._travels_MT & is_value_T
        self._state_MT = self._travels_MT & ~is_value_T
        self.widths = _widths_of(self._travels_MW, self._travels_MS, shape.chunks) if shape.chunks else None
        """Floats of rows in files; None: rows are whole there."""

    def masks_of(self, rows_KT: NDArray[Any]) -> Masks:
        """The masks of whole rows; none if rows have no chunks."""
        return rows_KT[:, -1].astype(np.uint8) if self._shape.chunks else np.empty(0, np.uint8)

    def floats(self, rows: int, masks_K: Masks, with_state: bool) -> int:
        """Floats of so many packed rows with these masks. Raises WireError for masks that rows cannot have."""
        travels_MX = self._travels(with_state)
        expected = rows if self._shape.chunks else 0
        if len(masks_K) != expected or masks_K.max(initial=0) >= len(travels_MX):
            raise WireError(
                f"{rows} rows came with {len(masks_K)} masks up to {masks_K.max(initial=0)}; expected {expected} masks "
                f"up to {len(travels_MX) - 1}; give worker and shard the same settings"
            )
        return int(self._floats_M[with_state][masks_K].sum()) if expected else rows * travels_MX.shape[1]

    def pack(self, rows_KX: NDArray[Any], masks_K: Masks, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """The floats that travel, flat. out: where to put them, as long as they are."""
        if not self._shape.chunks:
            if out is None:
                return rows_KX.reshape(-1)
            out[:] = rows_KX.reshape(-1)
            return out
        with_state = rows_KX.shape[1] == self._shape.total
        packed_L = np.empty(self.floats(len(rows_KX), masks_K, with_state), self._dtype) if out is None else out
        _pack(rows_KX, masks_K, self._travels(with_state), packed_L)
        return packed_L

    def unpack(self, packed_L: NDArray[Any], masks_K: Masks, with_state: bool) -> NDArray[Any]:
        """Rows, or their values, as they were; the number of floats must be that of ``floats``."""
        width = self._shape.total if with_state else self._shape.value
        if not self._shape.chunks:
            return packed_L.reshape(-1, width)
        rows_KX = np.empty((len(masks_K), width), self._dtype)
        rows_KX[:] = self._stays_T[:width]
        _unpack(packed_L, masks_K, self._travels(with_state), rows_KX)
        if with_state:
            rows_KX[:, -1] = masks_K
        return rows_KX

    def pack_at(
        self,
        rows_KT: NDArray[Any],
        masks_K: Masks,
        starts: tuple[NDArray[np.int64], NDArray[np.int64]],
        packed: tuple[NDArray[Any], NDArray[Any]],
    ) -> None:
        """Packs rows as in files, values and state apart, each row at its starts. Needs chunks."""
        for travels_MT, starts_K, packed_L in zip((self._values_MT, self._state_MT), starts, packed, strict=True):
            _pack_at(rows_KT, masks_K, travels_MT, starts_K, packed_L)

    def unpack_parts(self, values_L: NDArray[Any], state_L: NDArray[Any], masks_K: Masks) -> NDArray[Any]:
        """Rows that were packed as in files; the numbers of floats must be those of ``widths``."""
        state_KS = np.empty((len(masks_K), self._shape.state), self._dtype)
        state_KS[:] = self._stays_T[self._shape.value :]
        _unpack(state_L, masks_K, self._travels_MS, state_KS)
        state_KS[:, -1] = masks_K
        return np.concatenate([self.unpack(values_L, masks_K, with_state=False), state_KS], axis=1)

    def warm_up_reading(self, with_state: bool) -> None:
        """Compiles the kernels that unpack rows of files, whose arrays cannot be written."""
        if self._shape.chunks:
            floats = np.frombuffer(bytes(self._shape.total * self._dtype.itemsize), self._dtype)
            masks = np.frombuffer(bytes(1), np.uint8)
            if with_state:
                self.unpack_parts(floats, floats, masks)
            else:
                self.unpack(floats, masks, with_state=False)

    def _travels(self, with_state: bool) -> NDArray[np.bool_]:
        return self._travels_MT if with_state else self._travels_MW


def _widths_of(travels_MW: NDArray[np.bool_], travels_MS: NDArray[np.bool_], chunks: int) -> PackedWidths:
    """All chunks are equally wide, so rows with none and with one live chunk show how wide the others are."""
    values_M = travels_MW.sum(axis=1).tolist()
    state_M = travels_MS.sum(axis=1).tolist()
    return PackedWidths(chunks, values_M[0], values_M[1] - values_M[0], state_M[0], state_M[1] - state_M[0])

"""A file of rows: one shard's changed rows, or all of them, as one safetensors file.

    length of the header, 8 bytes | header, JSON | numbers | keys | versions | values | state | dense | masks

Rows are sorted by number. Values and state are tables, and there are no masks, unless chunks of rows can be pruned.
Then rows are packed, one after the other without the columns of pruned chunks (ps/packed.py), and the header says how
many floats a row has in any case and for each live chunk.

Dense is the whole range of the shard, with optimizer state. A file has no dense part if the range was never handed in,
or if a later file of the checkpoint has it. There are two checksums: one of the whole content, in the FilePart,
verified by every full read; and one of the numbers and keys, in the header, so that an index can be rebuilt from these
two columns alone and still be verified. Anything that does not fit raises CheckpointDamaged, which names the file.

Legend: K rows, W columns of a value, S of state, L floats of the dense range. Packed values_KW and state_KS are flat.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from infra.base.errors import NotStored
from infra.base.storage import Storage
from infra.base.wire import NO_U8
from ps.errors import CheckpointDamaged
from ps.packed import PACKED, Masks, PackedWidths
from ps.protocol import FilePart
from ps.utilities import all_live, count_live

DTYPES: dict[str, np.dtype[Any]] = {
    "I64": np.dtype(np.int64),
    "U64": np.dtype(np.uint64),
    "U8": np.dtype(np.uint8),
    "F32": np.dtype("f4"),
    "F64": np.dtype("f8"),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
INDEX_CHECKSUM = "index_checksum"
WIDTHS = "packed"
"""Entry of the header's metadata: the widths of packed rows."""
LONGEST_HEADER = 1 << 16
BLOCK_BYTES = 16 << 20
"""Bytes read or written at a time."""
MEMORY_BYTES = 64 << 20
"""A file up to this size is read in one request."""
COUNTED_ROWS = 4096
"""Live chunks are counted up to every so many rows of a file, to find the floats of a row."""


class Columns(NamedTuple):
    """The rows of a file, and the dense range."""

    numbers_K: NDArray[np.int64]
    keys_K: NDArray[np.uint64]
    last_steps_K: NDArray[np.int64]
    values_KW: NDArray[Any]
    state_KS: NDArray[Any]
    dense_L: NDArray[Any]
    masks_K: Masks = NO_U8
    """Live chunks of each row, if rows are packed."""
    widths: PackedWidths | None = None
    """Floats of packed rows; None: rows are whole."""

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of the file, by name, in order."""
        arrays = {
            "numbers": self.numbers_K,
            "keys": self.keys_K,
            "versions": self.last_steps_K,
            "values": self.values_KW,
            "state": self.state_KS,
            "dense": self.dense_L,
            MASKS: self.masks_K,
        }
        return {name: arrays[name] for name in entries_of(self.widths)}


ENTRIES = ("numbers", "keys", "versions", "values", "state", "dense")
"""Names in the file, in the order of Columns. "versions" are the last steps: files of earlier releases call them so."""
MASKS = "masks"


def entries_of(widths: PackedWidths | None) -> tuple[str, ...]:
    """Names in a file of rows that are packed like this, or whole."""
    return ENTRIES if widths is None else (*ENTRIES, MASKS)


class Entry(NamedTuple):
    """The location of an array in a file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    """Offset from the beginning of the file."""

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * (self.shape[1] if len(self.shape) > 1 else 1)

    @property
    def end(self) -> int:
        return self.start + self.shape[0] * self.row_bytes


def new_name(checkpoint: int, kind: str, shard: int) -> str:
    """A unique name: no other file ever has it."""
    return f"{checkpoint:08d}/{kind}-{shard}-{uuid4().hex}.safetensors"


# ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def write_columns(storage: Storage, name: str, columns: Columns) -> FilePart:
    """Writes a file, which is durable at return."""
    return write_chunks(storage, name, content_of(columns), len(columns.numbers_K))


def content_of(columns: Columns) -> tuple[Any, ...]:
    """The content of a file, in pieces: its header, and the arrays that are not empty."""
    index = xxhash.xxh3_128(columns.numbers_K.data)
    index.update(columns.keys_K.data)
    arrays = columns.arrays
    described = [(array.dtype, array.shape) for array in arrays.values()]
    header = header_of(described, index.hexdigest(), columns.widths)
    return header, *(array for array in arrays.values() if array.size)


def write_chunks(storage: Storage, name: str, chunks: Iterable[Any], rows: int) -> FilePart:
    """Writes a file of that many rows from its pieces, and computes its checksum on the way."""
    digest = xxhash.xxh3_128()

    def hashed() -> Iterator[Any]:
        for chunk in chunks:
            digest.update(memoryview(chunk).cast("B"))
            yield chunk

    nbytes = storage.write(name, hashed())
    return FilePart(name, nbytes, digest.hexdigest(), rows)


def header_of(
    arrays: Iterable[tuple[np.dtype[Any], tuple[int, ...]]], index_checksum: str, widths: PackedWidths | None = None
) -> bytes:
    """The beginning of a file with arrays of these types and shapes, in the order of ``entries_of``."""
    metadata = {INDEX_CHECKSUM: index_checksum}
    if widths is not None:
        metadata[WIDTHS] = msgspec.json.encode(widths).decode()
    described: dict[str, Any] = {"__metadata__": metadata}
    start = 0
    for name, (dtype, shape) in zip(entries_of(widths), arrays, strict=True):
        end = start + dtype.itemsize * int(np.prod(shape))
        described[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(described).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def read_columns(storage: Storage, part: FilePart) -> Columns:
    """Reads and verifies a whole file."""
    with _damage(storage, part):
        content = storage.read(part.name)
        _check(content.nbytes == part.nbytes, f"it has {content.nbytes} bytes; expected {part.nbytes}")
        _check(xxhash.xxh3_128_hexdigest(content) == part.checksum, "its checksum is wrong")
        header = _header(content[:8], content[8 : 8 + LONGEST_HEADER], part)
        arrays = {name: _array(entry, content[entry.start : entry.end]) for name, entry in header.entries.items()}
        _check_masks(header, arrays.get(MASKS, NO_U8))
        return Columns(
            numbers_K=arrays["numbers"],
            keys_K=arrays["keys"],
            last_steps_K=arrays["versions"],
            values_KW=arrays["values"],
            state_KS=arrays["state"],
            dense_L=arrays["dense"],
            masks_K=arrays.get(MASKS, NO_U8),
            widths=header.widths,
        )


class IndexColumns(NamedTuple):
    """What an index is rebuilt from."""

    numbers_K: NDArray[np.int64]
    keys_K: NDArray[np.uint64]
    last_steps_K: NDArray[np.int64]


def read_index(storage: Storage, part: FilePart) -> IndexColumns:
    """Reads the numbers, keys and last steps of a file, and nothing else of it; verifies numbers and keys."""
    with RowFile(storage, part) as file:
        numbers_K = file.read("numbers", 0, part.rows)
        keys_K = file.read("keys", 0, part.rows)
        digest = xxhash.xxh3_128(numbers_K.data)
        digest.update(keys_K.data)
        with _damage(storage, part):
            _check(digest.hexdigest() == file.index_checksum, "the checksum of its numbers and keys is wrong")
        return IndexColumns(numbers_K, keys_K, file.read("versions", 0, part.rows))


def verify(storage: Storage, part: FilePart) -> None:
    """Reads a whole file, a block at a time; raises CheckpointDamaged unless it is what was written."""
    digest = xxhash.xxh3_128()
    with _damage(storage, part), closing(storage.open(part.name)) as file:
        _check(file.nbytes == part.nbytes, f"it has {file.nbytes} bytes; expected {part.nbytes}")
        for start in range(0, part.nbytes, BLOCK_BYTES):
            digest.update(file.read_at(start, BLOCK_BYTES))
        _check(digest.hexdigest() == part.checksum, "its checksum is wrong")


class RowFile:
    """A file that is open for reading ranges of its columns; a small file is read in one request."""

    def __init__(self, storage: Storage, part: FilePart) -> None:
        self.part = part
        self._storage = storage
        self._content: memoryview | None = None
        with _damage(storage, part):
            self._file = storage.open(part.name)
            _check(self._file.nbytes == part.nbytes, f"it has {self._file.nbytes} bytes; expected {part.nbytes}")
            self._header = _header(self._read(0, 8), self._read(8, LONGEST_HEADER), part)
        self.entries = self._header.entries
        self.index_checksum = self._header.index_checksum
        self.widths = self._header.widths

    def __enter__(self) -> "RowFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def keep(self) -> None:
        """Reads a small file into memory, so that reading ranges of it needs no further requests."""
        if self.part.nbytes <= MEMORY_BYTES:
            self._content = self._read(0, self.part.nbytes)

    @cached_property
    def masks(self) -> Masks:
        """Masks of all rows, read once and checked; none if rows are whole."""
        masks_K = self._read_entry(MASKS, 0, self.part.rows) if self.widths is not None else NO_U8
        with _damage(self._storage, self.part):
            _check_masks(self._header, masks_K)
        return masks_K

    def read(self, name: str, first: int, end: int) -> NDArray[Any]:
        """Rows first to end of a column; flat if it is packed."""
        if self.widths is not None and name in PACKED:
            places = (self.widths.before(name, row, self._live_before(row)) for row in (first, end))
            return self._read_entry(name, *places)
        return self._read_entry(name, first, end)

    @cached_property
    def _live_before_blocks(self) -> NDArray[np.int64]:
        """Live chunks of the rows before every COUNTED_ROWS."""
        starts = np.arange(0, self.part.rows, COUNTED_ROWS)
        live = np.add.reduceat(np.bitwise_count(self.masks), starts, dtype=np.int64) if len(starts) else starts
        return np.concatenate([[0], np.cumsum(live)])

    def _live_before(self, row: int) -> int:
        block = row // COUNTED_ROWS
        return int(self._live_before_blocks[block]) + count_live(self.masks[block * COUNTED_ROWS : row])

    def _read_entry(self, name: str, first: int, end: int) -> NDArray[Any]:
        entry = self.entries[name]
        start = entry.start + first * entry.row_bytes
        nbytes = (end - first) * entry.row_bytes
        with _damage(self._storage, self.part):
            found = self._read(start, nbytes)
            _check(found.nbytes == nbytes, f"it ends at {start + found.nbytes}; expected {self.part.nbytes} bytes")
            return _array(entry._replace(shape=(end - first, *entry.shape[1:])), found)

    def _read(self, start: int, nbytes: int) -> memoryview:
        if self._content is not None:
            return self._content[start : start + nbytes]
        return self._file.read_at(start, nbytes)


def _array(entry: Entry, content: memoryview) -> NDArray[Any]:
    return np.frombuffer(content, entry.dtype).reshape(entry.shape)


class _Header(NamedTuple):
    """What the header of a file says."""

    entries: dict[str, Entry]
    index_checksum: str
    widths: PackedWidths | None


def _header(length: memoryview, text: memoryview, part: FilePart) -> _Header:
    """Parses a header, and checks the location of each array against the size of the file."""
    size = int.from_bytes(length, "little")
    _check(size <= len(text), f"its header has {size} bytes; expected {len(text)} at most")
    try:
        described = json.loads(bytes(text[:size]))
        metadata = described["__metadata__"]
        checksum = str(metadata[INDEX_CHECKSUM])
        widths = msgspec.json.decode(metadata[WIDTHS], type=PackedWidths) if WIDTHS in metadata else None
        entries = {name: _entry(described[name], 8 + size) for name in entries_of(widths)}
    except (ValueError, KeyError, TypeError, IndexError, msgspec.DecodeError) as error:
        _check(False, f"its header is unreadable: {error!r}")
    flat = {"dense"} if widths is None else {"dense", *PACKED}
    rows = [entry.shape[0] for name, entry in entries.items() if name not in flat]
    _check(rows == [part.rows] * len(rows), f"it has {rows} rows by column; expected {part.rows}")
    last = max(entry.end for entry in entries.values())
    _check(last == part.nbytes, f"its arrays end at {last}; expected {part.nbytes}")
    return _Header(entries, checksum, widths)


def _check_masks(header: _Header, masks_K: Masks) -> None:
    """Raises CheckpointDamaged unless packed rows with these masks have as many floats as the file."""
    if header.widths is None:
        return
    most = all_live(header.widths.chunks)
    _check(masks_K.dtype == np.uint8 and masks_K.ndim == 1, f"its masks are {masks_K.shape} of {masks_K.dtype}")
    _check(masks_K.max(initial=0) <= most, f"it has the mask {masks_K.max(initial=0)}; expected {most} at most")
    for name in PACKED:
        shape = header.entries[name].shape
        floats = header.widths.floats(name, masks_K)
        _check(shape == (floats,), f"its {name} are {shape} floats; expected {floats} by the masks")


def _entry(described: Any, begin: int) -> Entry:
    start, end = described["data_offsets"]
    entry = Entry(DTYPES[described["dtype"]], tuple(int(length) for length in described["shape"]), begin + int(start))
    if min(start, *entry.shape) < 0 or entry.end != begin + end:
        raise ValueError(f"an array of shape {entry.shape} lies from {start} to {end}")
    return entry


def _check(is_right: bool, what: str) -> None:
    if not is_right:
        raise CheckpointDamaged(what)


@contextmanager
def _damage(storage: Storage, part: FilePart) -> Iterator[None]:
    """Adds the name of the file to a message about damage."""
    try:
        yield
    except NotStored as error:
        raise CheckpointDamaged(f"a file of a checkpoint is missing: {error}") from error
    except CheckpointDamaged as error:
        raise CheckpointDamaged(
            f"{storage.where(part.name)} is damaged: {error}; expected the file as it was written; go back to a "
            "checkpoint "
            "without it, or restore it from a copy"
        ) from error

"""A file of rows: one shard's changed rows, or all of them, as one safetensors file.

    length of the header, 8 bytes | header, JSON | numbers | keys | versions | values | state | dense

Rows are sorted by number. Dense is the whole range of the shard, with optimizer state. A file has no dense part if the
range was never handed in, or if a later file of the checkpoint has it. There are two checksums: one of the whole
content, in the FilePart, verified by every full read; and one of the numbers and keys, in the header, so that an index
can be rebuilt from these two columns alone and still be verified. Anything that does not fit raises CheckpointDamaged,
which names the file.

Legend: K rows, W columns of a value, S of state, L floats of the dense range.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import xxhash
from numpy.typing import NDArray

from infra.base.errors import NotStored
from infra.base.storage import Storage
from ps.errors import CheckpointDamaged
from ps.protocol import FilePart

DTYPES: dict[str, np.dtype[Any]] = {
    "I64": np.dtype(np.int64),
    "U64": np.dtype(np.uint64),
    "F32": np.dtype("f4"),
    "F64": np.dtype("f8"),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
INDEX_CHECKSUM = "index_checksum"
LONGEST_HEADER = 1 << 16
BLOCK_BYTES = 16 << 20
"""Bytes read or written at a time."""
MEMORY_BYTES = 64 << 20
"""A file up to this size is read in one request."""


class Columns(NamedTuple):
    """The rows of a file, and the dense range."""

    numbers_K: NDArray[np.int64]
    keys_K: NDArray[np.uint64]
    last_steps_K: NDArray[np.int64]
    values_KW: NDArray[Any]
    state_KS: NDArray[Any]
    dense_L: NDArray[Any]


ENTRIES = ("numbers", "keys", "versions", "values", "state", "dense")
"""Names in the file, in the order of Columns. "versions" are the last steps: files of earlier releases call them so."""


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
    header = header_of([(array.dtype, array.shape) for array in columns], index.hexdigest())
    return header, *(array for array in columns if array.size)


def write_chunks(storage: Storage, name: str, chunks: Iterable[Any], rows: int) -> FilePart:
    """Writes a file of that many rows from its pieces, and computes its checksum on the way."""
    digest = xxhash.xxh3_128()

    def hashed() -> Iterator[Any]:
        for chunk in chunks:
            digest.update(memoryview(chunk).cast("B"))
            yield chunk

    nbytes = storage.write(name, hashed())
    return FilePart(name, nbytes, digest.hexdigest(), rows)


def header_of(arrays: Iterable[tuple[np.dtype[Any], tuple[int, ...]]], index_checksum: str) -> bytes:
    """The beginning of a file with arrays of these types and shapes, in the order of ENTRIES."""
    described: dict[str, Any] = {"__metadata__": {INDEX_CHECKSUM: index_checksum}}
    start = 0
    for name, (dtype, shape) in zip(ENTRIES, arrays, strict=True):
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
        entries, _ = _entries(content[:8], content[8 : 8 + LONGEST_HEADER], part)
        return Columns(*(_array(entry, content[entry.start : entry.end]) for entry in entries.values()))


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
            self.entries, self.index_checksum = _entries(self._read(0, 8), self._read(8, LONGEST_HEADER), part)

    def __enter__(self) -> "RowFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def keep(self) -> None:
        """Reads a small file into memory, so that reading ranges of it needs no further requests."""
        if self.part.nbytes <= MEMORY_BYTES:
            self._content = self._read(0, self.part.nbytes)

    def read(self, name: str, first: int, end: int) -> NDArray[Any]:
        """Rows first to end of a column."""
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


def _entries(length: memoryview, text: memoryview, part: FilePart) -> tuple[dict[str, Entry], str]:
    """The location of each array, checked against the size of the file, and the checksum of numbers and keys."""
    size = int.from_bytes(length, "little")
    _check(size <= len(text), f"its header has {size} bytes; expected {len(text)} at most")
    try:
        described = json.loads(bytes(text[:size]))
        checksum = str(described["__metadata__"][INDEX_CHECKSUM])
        entries = {name: _entry(described[name], 8 + size) for name in ENTRIES}
    except (ValueError, KeyError, TypeError, IndexError) as error:
        _check(False, f"its header is unreadable: {error!r}")
    rows = [entry.shape[0] for entry in entries.values()][:-1]
    _check(rows == [part.rows] * len(rows), f"it has {rows} rows by column; expected {part.rows}")
    last = max(entry.end for entry in entries.values())
    _check(last == part.nbytes, f"its arrays end at {last}; expected {part.nbytes}")
    return entries, checksum


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

"""The files of a journal: records in frames, in segments.

    FOLDER/writer.lock                  held by the one writer
           00000000000000000000.log     frames 0.. ; the next segment is named by its first frame

One append is one frame (``ingest.log.frames``), however many records it brings: it is there as a whole or not at all.
Appending: 1. write the frame  2. sync it. A crash in between leaves a torn tail, which was never acknowledged and is
cut off at the next opening. Everything else is damage and stops reader and writer with an error that names the file: a
frame that was changed, a segment that is missing or was cut before the last one, a record that is not known.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec

from dispatch.journal.records import AnyRecord
from infra.files import naming
from ingest.errors import LogCorrupt, LogError
from ingest.log.frames import frame, lock, read_frames, sync_folder, truncate, write_durably

OPENING = b"FRESHJN1"
"""how a segment begins: what it is, and the version of its format"""
LOCK = "writer.lock"
SEGMENT_BYTES = 64 << 20

_decoder = msgspec.msgpack.Decoder(list[AnyRecord])
_encoder = msgspec.msgpack.Encoder()


class JournalWriter:
    """Appends to a journal; one writer at a time."""

    def __init__(self, folder: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        """Opens or creates it; a torn last frame is cut off, other damage is an error."""
        self.folder, self._segment_bytes = folder, segment_bytes
        self._file = -1
        self._noted: list[AnyRecord] = []
        with ExitStack() as undo, naming(folder, LogError):
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = lock(folder / LOCK)
            undo.callback(self.close)
            segments = list(_segments(folder))
            first, bodies, end = segments[-1] if segments else (0, [], 0)
            self._frames = first + len(bodies)
            self._open(first, end)
            undo.pop_all()

    def append(self, *records: AnyRecord) -> None:
        """Returns once these records, and those noted before, are durable."""
        written = frame(_encoder.encode([*self._noted, *records]))
        if self._end + len(written) > self._segment_bytes and self._end > len(OPENING):
            self._open(self._frames, 0)
        self._end += write_durably(self._file, written, self._end, self._path)
        self._frames += 1
        self._noted.clear()

    def note(self, record: AnyRecord) -> None:
        """Keeps a record for the next append."""
        self._noted.append(record)

    def close(self) -> None:
        """What was noted and not appended is dropped."""
        for file in (self._file, self._lock):
            if file >= 0:
                os.close(file)
        self._file = self._lock = -1

    def _open(self, first: int, end: int) -> None:
        """Goes on in a segment that is whole up to there; 0: begins it."""
        if self._file >= 0:
            os.close(self._file)
        self._path = _path(self.folder, first)
        with naming(self._path, LogError):
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            truncate(self._file, end)
        self._end = end or write_durably(self._file, OPENING, 0, self._path)
        sync_folder(self.folder)


def read_records(folder: Path) -> Iterator[AnyRecord]:
    """Every whole record of a journal that another process may be writing, oldest first."""
    for first, bodies, _ in _segments(folder):
        for body in bodies:
            try:
                yield from _decoder.decode(body)
            except msgspec.DecodeError as error:
                raise LogCorrupt(
                    f"{_path(folder, first)} holds a record that cannot be decoded: {error}; expected the records of "
                    "one version of Freshet; restore it from a copy, or read it with the version that wrote it"
                ) from error


def _segments(folder: Path) -> Iterator[tuple[int, list[bytes], int]]:
    """(first frame, content of the frames, where they end) of each segment; all but the last must be whole."""
    with naming(folder, LogError):
        firsts = sorted(int(path.stem) for path in folder.glob("*.log") if path.stem.isdigit())
    expected = 0
    for place, first in enumerate(firsts):
        path = _path(folder, first)
        bodies, end = read_frames(path, OPENING)
        if first != expected:
            raise LogCorrupt(
                f"{path} begins with frame {first} of the journal; expected one that begins with frame {expected}; "
                "restore the missing segment from a copy"
            )
        with naming(path, LogError):
            is_cut = place < len(firsts) - 1 and path.stat().st_size != end
        if is_cut:
            raise LogCorrupt(
                f"{path} was cut at byte {end}, and later segments follow it; expected a whole segment; restore it "
                "from a copy"
            )
        yield first, bodies, end
        expected = first + len(bodies)


def _path(folder: Path, first: int) -> Path:
    return folder / f"{first:020d}.log"

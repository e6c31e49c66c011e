"""The files of a journal: records in frames, in segments.

    FOLDER/writer.lock                  held by the one writer
           identity                     a unique name, assigned when the journal is first opened
           00000000000000000000.log     frames 0.. ; the next segment is named by its first frame
           unread/                      segments that are kept only for readers of the journal

One append is one frame (``ingest.log.frames``), however many records it has: it is there as a whole or not at all.
Appending: 1. write the frame 2. sync it. A crash in between leaves a torn tail, which was never acknowledged and is
removed at the next opening. An append that fails, on a full disk, leaves the journal as it was, and may be repeated.

A new segment begins when one is full, and with every checkpoint: then its first record is a ``CheckpointBegun``, with
everything that a reader needs to begin there, so segments before it may be dropped once no kept checkpoint needs them.
They are removed oldest first; what a crash leaves of them is skipped up to the next segment that begins with a
checkpoint. Everything else is damage and stops reader and writer with an error that names the file: a changed frame, a
segment that is missing or was truncated before the last one, an unknown record.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar
from uuid import uuid4

import msgspec

from dispatch.commands.stop import STOPPED
from dispatch.errors import JournalUnwritable
from dispatch.journal.answers import CommandAnswer
from dispatch.journal.copied import taken, write_file
from dispatch.journal.records import (
    AlphaChanged,
    AnyRecord,
    CheckpointBegun,
    Commanded,
    Ended,
    Redecided,
    StepDecided,
    Stopped,
)
from infra.base.files import is_full, naming
from ingest.errors import LogCorrupt, LogError, OwnerReplaced, SinkError, SinkUnavailable
from ingest.log.frame_copy import FrameCopy
from ingest.log.frames import (
    END,
    HEAD,
    frame,
    frame_bytes,
    lock,
    next_frame,
    read_frames,
    sync_folder,
    truncate,
    write_durably,
)

OPENING = b"FRESHJN1"
"""The first bytes of a segment: its kind, and the version of its format."""
LOCK = "writer.lock"
IDENTITY = "identity"
IDENTITY_LETTERS = 24
"""Letters of an identity, before its checksum."""
UNREAD = "unread"
"""Folder of segments that no checkpoint needs any more, and that some reader has not read."""
SEGMENT_BYTES = 64 << 20
READ_BYTES = 256 << 10
"""Bytes that readers of a journal read at a time."""
READ_TIMES = 10
"""Attempts to read a journal while the writer drops segments."""

T = TypeVar("T")
_decoder = msgspec.msgpack.Decoder(list[AnyRecord])
_encoder = msgspec.msgpack.Encoder()


class SegmentGone(LogError):
    """A segment was dropped while the journal was read."""


class Segment(NamedTuple):
    """A segment that has been read."""

    first: int
    """Number of its first frame."""
    bodies: list[bytes]
    """Contents of its frames."""
    end: int
    """Where they end; 0: it does not even have its opening bytes yet."""


class CheckpointSegment(NamedTuple):
    """A segment with a checkpoint's record; if it begins with that, it and later ones hold every later step."""

    first: int
    """Number of its first frame."""
    step: int
    """Step of the checkpoint."""


class Reach:
    """Which segments a reader may begin with, according to the records so far."""

    def __init__(self) -> None:
        self.begins: list[CheckpointSegment] = []
        """Segments, oldest first."""
        self._checkpoints: dict[int, CheckpointSegment] = {}
        """Step of each checkpoint and the segment that holds its record, by number."""
        self._last = 0
        """The newest step ever decided, void or not."""

    def add(self, record: AnyRecord, segment: int, is_first: bool) -> None:
        """segment: first frame of the one that holds the record; is_first: whether it begins with it."""
        match record:
            case CheckpointBegun():
                self._checkpoints[record.number] = CheckpointSegment(segment, record.step)
                self._last = max(self._last, record.step)
                if is_first and record.opens:
                    self.begins.append(CheckpointSegment(segment, record.step))
            case StepDecided():
                self._last = max(self._last, record.step)
            case Redecided():
                self.begins = [begin for begin in self.begins if begin.step <= record.step]

    def is_covered(self, checkpoint: CheckpointBegun) -> bool:
        """Whether all steps after the checkpoint, including void ones to be decided again, will follow its record."""
        return checkpoint.step >= self._last

    def first_needed(self, number: int) -> int:
        """First frame of the segments that a checkpoint needs; 0 if it is not recorded."""
        checkpoint = self._checkpoints.get(number, CheckpointSegment(-1, -1))
        usable = (
            begin.first for begin in self.begins if begin.step <= checkpoint.step and begin.first <= checkpoint.first
        )
        return max(usable, default=0)

    def forget(self, needed: int) -> None:
        """Forgets segments before that frame, which are gone."""
        self.begins = [begin for begin in self.begins if begin.first >= needed]
        self._checkpoints = {
            number: checkpoint for number, checkpoint in self._checkpoints.items() if checkpoint.first >= needed
        }


class JournalTail:
    """A place in a journal that another thread or process may be writing: reads what follows it, frame by frame."""

    def __init__(self, folder: Path, cursor: int) -> None:
        """Starts after ``cursor`` frames, or where the journal begins if that is later."""
        firsts = [*firsts_of(folder / UNREAD), *firsts_of(folder)]
        self._folder = folder
        self._segment = max((first for first in firsts if first <= cursor), default=min(firsts, default=0))
        self._at = len(OPENING)
        """Where the next frame begins in the segment."""
        self._frame = self._segment
        """Number of the next frame."""
        self.cursor = max(cursor, self._segment)
        """Frames that have been read, or dropped before they could be."""

    def read(self, newest: int) -> Iterator[tuple[int, list[AnyRecord]]]:
        """The frames up to a cursor, which must all be durable, each with the cursor that follows it.

        Raises SegmentGone if they are dropped meanwhile.
        """
        view = b""
        begins = self._at
        while self._frame < newest:
            size = frame_bytes(view, self._at - begins)
            if size is None or self._at - begins + size > len(view):
                view = self._load(size or 0)
                begins = self._at
            end = next_frame(view, self._at - begins)
            if end is None:
                raise LogCorrupt(
                    f"{segment_path(self._folder, self._segment)} is damaged at byte {self._at}: no whole frame begins "
                    f"there; expected frame {self._frame} of {newest}; restore it from a copy"
                )
            body = view[self._at - begins + HEAD.size : end - len(END)]
            self._at, self._frame = begins + end, self._frame + 1
            if self._frame > self.cursor:
                self.cursor = self._frame
                yield self._frame, _decode(body, self._folder, self._segment)

    def _load(self, least: int) -> bytes:
        """What follows in the segment, at least that many bytes; or in the next one, if this one ends here."""
        content = self._load_segment(least)
        if not content and self._segment != self._frame:
            self._segment = self._frame
            self._at = len(OPENING)
            content = self._load_segment(least)
        return content

    def _load_segment(self, least: int) -> bytes:
        for folder in (self._folder, self._folder / UNREAD):  # in this order: segments are moved from one to the other
            path = segment_path(folder, self._segment)
            with naming(path, LogError), suppress(FileNotFoundError), path.open("rb", buffering=0) as file:
                return os.pread(file.fileno(), max(least, READ_BYTES), self._at)
        raise SegmentGone(f"{path} was dropped while it was read; expected it to stay; read again")


class JournalWriter:
    """Appends to a journal; one writer at a time."""

    def __init__(self, folder: Path, segment_bytes: int = SEGMENT_BYTES, copy: FrameCopy | None = None) -> None:
        """Opens or creates it; a torn last frame is removed, other damage is an error.

        copy: where each frame is kept, too; it must have those that the folder has.
        """
        self.folder = folder
        self._copy = copy
        self._segment_bytes = segment_bytes
        self._file = -1
        self._noted: list[AnyRecord] = []
        self._reach = Reach()
        self._frames = 0
        self.steered = 0
        """Cursor of the newest command or change of alpha, or later if that has been dropped."""
        self.answers: dict[str, CommandAnswer] = {}
        """Answers to the commands that were recorded when it was opened, or later; by id."""
        with ExitStack() as undo, naming(folder, LogError):
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = lock(folder / LOCK)
            undo.callback(self.close)
            self.identity = identity_of(folder) or give_identity(folder)
            found = Segment(0, [], 0)
            self.steered = min(firsts_of(folder), default=0)
            for found in read_segments(folder):
                for place, body in enumerate(found.bodies):
                    self._frames = found.first + place + 1
                    self._track_records(_decode(body, folder, found.first), found.first, is_first=place == 0)
            self._frames = found.first + len(found.bodies)
            self._open(found.first, found.end)
            undo.pop_all()
        self._begins_next = False

    def append(self, *records: AnyRecord) -> None:
        """Returns once these records, and those noted before, are durable.

        Raises JournalUnwritable if there is no room, or the copy cannot be written now: nothing is lost, and the same
        may be appended later. Raises JournalTaken if somebody else continues the journal.
        """
        body = _encoder.encode([*self._noted, *records])
        if self._end + len(body) > self._segment_bytes and self._end > len(OPENING):
            self._begins_next = True
        self._write(body)
        self._track_records([*self._noted, *records], int(self._path.stem), is_first=False)
        self._noted.clear()

    def begin_checkpoint(self, checkpoint: CheckpointBegun) -> None:
        """Appends the record of a checkpoint that begins, in a new segment if all later steps will be in it."""
        if not self._reach.is_covered(checkpoint):
            self.append(msgspec.structs.replace(checkpoint, opens=False))
            return
        self._begins_next = self._begins_next or self._end > len(OPENING)
        self._write(_encoder.encode([checkpoint, *self._noted]))
        self._track_records([checkpoint, *self._noted], int(self._path.stem), is_first=True)
        self._noted.clear()

    def note(self, record: AnyRecord) -> None:
        """Keeps a record for the next append."""
        self._noted.append(record)

    @property
    def cursor(self) -> int:
        """Position at the end of the journal: the number of durable frames."""
        return self._frames

    def drop_before(self, number: int, seen: int = 0, most_bytes: int = 0) -> bool:
        """Removes the segments that neither a checkpoint nor later ones need; none if the checkpoint is not recorded.

        seen: the cursor up to which they have been read; unread ones are set aside while all take at most most_bytes.
        Returns whether any of those had to be removed.
        """
        needed = self._reach.first_needed(number)
        aside = self.folder / UNREAD
        with naming(self.folder, LogError):
            for first in firsts_of(self.folder):
                if first < needed:
                    aside.mkdir(exist_ok=True)
                    segment_path(self.folder, first).rename(segment_path(aside, first))
                    sync_folder(aside)
                    sync_folder(self.folder)
        self._reach.forget(needed)
        if self._copy is not None and needed:
            self._copy.drop_before(needed)
        return self._drop_unread(seen, most_bytes)

    def _drop_unread(self, seen: int, most_bytes: int) -> bool:
        aside = self.folder / UNREAD
        has_unread = False
        with naming(aside, LogError):
            paths = [*segment_paths(aside), *segment_paths(self.folder)]
            sizes = [path.stat().st_size for path in paths]
            left = sum(sizes)
            for path, after, size in zip(paths, paths[1:], sizes, strict=False):
                is_unread = int(after.stem) > seen
                if path.parent != aside or (is_unread and left <= most_bytes):
                    break
                path.unlink()
                left, has_unread = left - size, has_unread or is_unread
        return has_unread

    def close(self) -> None:
        """Closes the journal; records that were noted and not appended are dropped."""
        for file in (self._file, self._lock):
            if file >= 0:
                os.close(file)
        self._file = self._lock = -1

    def _write(self, body: bytes) -> None:
        try:
            if self._begins_next:
                self._open(self._frames, 0)
                self._begins_next = False
            with naming(self._path, LogError):
                truncate(self._file, self._end)  # a failed append may have left something
            written = write_durably(self._file, frame(body), self._end, self._path)
        except LogError as error:
            if isinstance(error.__cause__, OSError) and is_full(error.__cause__):
                raise JournalUnwritable(str(error)) from error
            raise
        if self._copy is not None:
            self._write_copy(self._copy, body)
        self._end += written
        self._frames += 1

    def _write_copy(self, copy: FrameCopy, body: bytes) -> None:
        """Writes the next frame to the copy, too; if that fails, readers of the folder do not see it either."""
        try:
            copy.append(self._frames, body)
        except SinkError as error:
            with naming(self._path, LogError):
                truncate(self._file, self._end)
            if isinstance(error, SinkUnavailable):
                raise JournalUnwritable(str(error)) from error
            if isinstance(error, OwnerReplaced):
                raise taken(self.folder, error) from error
            raise

    def _track_records(self, records: list[AnyRecord], segment: int, is_first: bool) -> None:
        """is_first: whether the segment begins with these records."""
        for place, record in enumerate(records):
            self._reach.add(record, segment, is_first and place == 0)
            if isinstance(record, Commanded | AlphaChanged):
                self.steered = self._frames
            if isinstance(record, Commanded):
                self.answers[record.id] = CommandAnswer(record.id, record.text, self._frames)

    def _open(self, first: int, end: int) -> None:
        """Continues in a segment that is whole up to end; 0: begins it. The one before is closed when that is done."""
        path = segment_path(self.folder, first)
        with naming(path, LogError), ExitStack() as undo:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            undo.callback(os.close, file)
            truncate(file, end)
            end = end or write_durably(file, OPENING, 0, path)
            sync_folder(self.folder)
            undo.pop_all()
        if self._file >= 0:
            os.close(self._file)
        self._file = file
        self._path = path
        self._end = end


@dataclass(frozen=True)
class Rest:
    """The end of a journal that was closed cleanly."""

    cursor: int
    since: float
    """When that was, in seconds since 1970."""


def rest_of(folder: Path) -> Rest | None:
    """The rest of a journal that was closed cleanly and is not being written; otherwise None."""
    paths = segment_paths(folder)
    if not paths:
        return None
    bodies, _ = read_frames(paths[-1], OPENING)
    last = _decode(bodies[-1], folder, int(paths[-1].stem))[-1] if bodies else None
    if isinstance(last, Stopped | Ended) or (isinstance(last, Commanded) and last.verb == STOPPED):
        return Rest(int(paths[-1].stem) + len(bodies), last.at_seconds)
    return None


def identity_of(folder: Path) -> str:
    """Distinguishes a journal from a new one under the same name; empty if none has been assigned yet.

    Raises LogCorrupt if it was changed: with another identity the journal would be mistaken for another.
    """
    path = folder / IDENTITY
    try:
        found = path.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return ""
    if found != _with_check(found[:IDENTITY_LETTERS]):
        raise LogCorrupt(
            f"{path} is damaged: it holds {found!r}; expected the identity that the journal was given; restore it from "
            "a copy, or remove it: the journal then gets another one, and databases keep what they have of it apart"
        )
    return found


def give_identity(folder: Path) -> str:
    """Assigns an identity, durably."""
    identity = _with_check(uuid4().hex[:IDENTITY_LETTERS])
    write_file(folder / IDENTITY, identity.encode())
    return identity


def _with_check(letters: str) -> str:
    return letters + hashlib.blake2b(letters.encode(), digest_size=4).hexdigest()


def read_records(folder: Path) -> Iterator[AnyRecord]:
    """Every whole record of a journal that another process may be writing, oldest first."""
    for segment in read_segments(folder):
        for body in segment.bodies:
            yield from _decode(body, folder, segment.first)


def read_whole(folder: Path, take: Callable[[Iterator[AnyRecord]], T]) -> T:
    """What ``take`` makes of all records; begins again if the writer drops segments meanwhile."""
    for _ in range(READ_TIMES - 1):
        try:
            return take(read_records(folder))
        except SegmentGone:
            continue
    return take(read_records(folder))


def _decode(body: bytes, folder: Path, first: int) -> list[AnyRecord]:
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise LogCorrupt(
            f"{segment_path(folder, first)} holds a record that cannot be decoded: {error}; expected the records of "
            "one version of Freshet; restore it from a copy, or read it with the version that wrote it"
        ) from error


def read_segments(folder: Path) -> Iterator[Segment]:
    """Segments from the first that a reader may begin with; all but the last must be whole."""
    firsts = firsts_of(folder)
    expected = firsts[0] if firsts else 0
    has_begun = expected == 0
    for place, first in enumerate(firsts):
        path = segment_path(folder, first)
        bodies, end = read_frames(path, OPENING)
        if first != expected:
            before, missing = (segment_path(folder, number).name for number in (firsts[place - 1], expected))
            raise LogCorrupt(
                f"{path} begins with frame {first} of the journal; expected one that begins with frame {expected}: "
                f"{missing} is missing, or {before} was truncated; restore the missing segment from a copy"
            )
        _check_segment(path, end, is_last=place == len(firsts) - 1)
        has_begun = has_begun or (bool(bodies) and begins_segment(bodies[0], folder, first))
        if has_begun:  # otherwise it is a leftover of dropped segments after a crash
            yield Segment(first, bodies, end)
        expected = first + len(bodies)
    if not has_begun:
        raise LogCorrupt(
            f"{segment_path(folder, firsts[0])} begins with frame {firsts[0]} of the journal; expected one that begins "
            "with frame 0, or with a checkpoint; restore the missing segment from a copy"
        )


def _check_segment(path: Path, end: int, is_last: bool) -> None:
    """Raises LogCorrupt unless a segment is whole."""
    with naming(path, LogError):
        try:
            size = path.stat().st_size
        except FileNotFoundError as error:
            raise SegmentGone(f"{path} was dropped while it was read; expected it to stay; read again") from error
    if not is_last and size != end:
        raise LogCorrupt(
            f"{path} was truncated at byte {end}, and later segments follow it; expected a whole segment; restore it "
            "from a copy"
        )


def begins_segment(body: bytes, folder: Path, first: int) -> bool:
    """Whether a frame begins with a checkpoint from which a reader can begin; first: of the segment that holds it."""
    record = _decode(body, folder, first)[0]
    return isinstance(record, CheckpointBegun) and record.opens


def firsts_of(folder: Path) -> list[int]:
    """First frames of the existing segments, in order."""
    with naming(folder, LogError):
        return sorted(int(path.stem) for path in folder.glob("*.log") if path.stem.isdigit())


def segment_paths(folder: Path) -> list[Path]:
    return [segment_path(folder, first) for first in firsts_of(folder)]


def segment_path(folder: Path, first: int) -> Path:
    return folder / f"{first:020d}.log"

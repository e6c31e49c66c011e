"""Makes a journal's folder equal to its copy: when a run is started, and on a machine that never had it."""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from dispatch.journal.copied import name_owner, owner_of, taken, write_file
from dispatch.journal.log import (
    IDENTITY,
    LOCK,
    OPENING,
    begins_segment,
    firsts_of,
    give_identity,
    identity_of,
    read_segments,
    segment_path,
)
from infra.base.files import naming
from ingest.errors import LogCorrupt, LogError, OwnerReplaced
from ingest.log.frame_copy import CopiedFrames, FrameCopy
from ingest.log.frames import END, HEAD, frame, lock, sync_folder, truncate, write_durably

MOST_AHEAD = 1
"""How many frames a folder may have that its copy lacks: the last append wrote them, and nobody was told of them."""


def open_copy(folder: Path, copy: FrameCopy) -> None:
    """Becomes the owner of a journal's copy, and makes the folder equal to it. A copy that has nothing gets everything.

    Raises JournalTaken if somebody else continues the journal, LogBusy if it is being written here.
    """
    with writing(folder):
        identity = identity_of(folder) or give_identity(folder)
        owner = owner_of(folder)
        try:
            copied = copy.take(owner.name, owner.after, identity)
            if copied.bodies:
                make_equal(folder, copied)
            else:
                for number, body in frames_in(folder):
                    copy.append(number, body)
        except OwnerReplaced as error:
            raise taken(folder, error) from error


def restore(folder: Path, copied: CopiedFrames) -> None:
    """Makes a folder that may replace the owner of a journal's copy. It may be empty, or have an older state of it."""
    folder.mkdir(parents=True, exist_ok=True)
    with writing(folder):
        identity = identity_of(folder)
        if identity not in ("", copied.journal):
            raise LogCorrupt(f"{folder} holds another run's journal; expected an empty folder; give another with --run")
        if not identity:
            write_file(folder / IDENTITY, copied.journal.encode())
        make_equal(folder, copied)
        name_owner(folder, after=copied.owner)


def writing(folder: Path) -> "closing[Lock]":
    """Keeps everyone else from writing a journal."""
    folder.mkdir(parents=True, exist_ok=True)
    return closing(Lock(folder))


class Lock:
    """The lock of a journal's one writer."""

    def __init__(self, folder: Path) -> None:
        self._file = lock(folder / LOCK)

    def close(self) -> None:
        os.close(self._file)


def frames_in(folder: Path) -> Iterator[tuple[int, bytes]]:
    """The frames of a journal, with their numbers."""
    for segment in read_segments(folder):
        yield from enumerate(segment.bodies, segment.first)


def make_equal(folder: Path, copied: CopiedFrames) -> None:
    """Appends the frames that a folder lacks; removes a last one that was never acknowledged.

    Raises LogCorrupt if they differ by more than that.
    """
    here = dict(frames_in(folder))
    end = max(here, default=copied.first - 1) + 1
    there = dict(enumerate(copied.bodies, copied.first))
    same = next((number for number in here if number >= copied.first and here[number] != there.get(number)), end)
    if here and (end < copied.first or end - same > MOST_AHEAD):
        raise LogCorrupt(
            f"{folder} holds frames {min(here)} to {end - 1} of the journal, and its copy frames {copied.first} to "
            f"{max(there, default=copied.first)}, which differ from frame {same} on; expected the folder to have at "
            "most one more; restore the run into a new folder ('freshet restore') to go on with the copy, or name "
            "another topic in dispatch.journal_topic to go on with the folder"
        )
    if same < end:
        drop_last(folder)
    append_frames(folder, same, [there[number] for number in range(same, max(there, default=-1) + 1)])


def drop_last(folder: Path) -> None:
    """Removes the last frame of a journal, durably, and its segment if that has no other."""
    *_, last = (segment for segment in read_segments(folder) if segment.bodies)
    with naming(folder, LogError):
        for first in firsts_of(folder):
            if first > last.first or (first == last.first and len(last.bodies) == 1):
                segment_path(folder, first).unlink()
        sync_folder(folder)
    if len(last.bodies) > 1:
        write_segment(folder, last.first, last.end - HEAD.size - len(last.bodies[-1]) - len(END), b"")


def append_frames(folder: Path, number: int, bodies: Sequence[bytes]) -> None:
    """Appends frames, the first of them with that number; a segment begins with each checkpoint that can begin one."""
    segment = next(reversed(list(read_segments(folder))), None)
    first, at = (number, 0) if segment is None else (segment.first, segment.end)
    content = bytearray()
    for body in bodies:
        if number > first and begins_segment(body, folder, number):
            write_segment(folder, first, at, bytes(content))
            first, at, content = number, 0, bytearray()
        content += frame(body)
        number += 1
    if content:
        write_segment(folder, first, at, bytes(content))


def write_segment(folder: Path, first: int, at: int, content: bytes) -> None:
    """Makes a segment end with this, durably; at: where it begins, 0: the segment is a new one."""
    path = segment_path(folder, first)
    with naming(path, LogError):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            truncate(file, at)
            write_durably(file, content if at else OPENING + content, at, path)
        finally:
            os.close(file)
        sync_folder(folder)

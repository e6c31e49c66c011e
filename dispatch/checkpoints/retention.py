"""Which checkpoints and files are kept.

- The newest ones, to go back to. Checkpoints that were taken only to be served do not count, because there is one per
  second, and a run must be able to go back further than that.
- The newest two of any kind, because servers may be reading them.
- Pinned ones.
- For servers: as many good ones and the newest good one of any kind, what is served or pinned, and the good one before
  each of these, to roll back to.
- Every file that one of them names.

While snapshots are held back, the good ones are older than the newest, and are kept nevertheless.

    checkpoints/00000007.pinned    checkpoint 7 is kept until this file is removed ('freshet checkpoints unpin')

Checkpoints are removed in this order: their manifests, and then the files that no other manifest names. A crash in
between leaves files without a manifest, which ``sweep`` removes when the run is started again. While the run trains,
only files of the removed checkpoints are removed: shards write and merge files that no manifest names yet. If the
manifest of a kept checkpoint, or the choice of what is served, cannot be read, nothing is removed, because it is not
known what is needed.
"""

import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from time import time
from typing import NamedTuple

import structlog

from infra.base.storage import PART, Storage
from ps.checkpoints.choice import Choice, read_choice
from ps.checkpoints.manifest import CheckpointManifest, manifest_name, manifest_numbers, read_manifest
from ps.checkpoints.served import served_now
from ps.errors import CheckpointDamaged
from ps.protocol import EMPTY_MODEL, FilePart

PINNED = re.compile(r"(\d{8,})\.pinned")
SERVED = 2
"""Newest checkpoints that are kept even if they were taken only to be served."""
NUMBERED = re.compile(r"(\d{8,})[./].+")
"""Matches every file of a checkpoint."""


class Retained(NamedTuple):
    """What is kept."""

    numbers: tuple[int, ...]
    """Numbers, ascending."""
    oldest: int
    """The oldest of the newest ones, pinned or not: the run can go back to it, so journal and stream must reach back to
    it. The empty model counts as one while there are fewer.
    """


# ── pins ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
def pin(storage: Storage, number: int) -> None:
    """Keeps a checkpoint until it is unpinned; raises CheckpointDamaged if it does not exist, or no longer."""
    read_manifest(storage, number)
    storage.write(_pin_name(number), [b"\n"])
    try:
        read_manifest(storage, number)  # once more: it may have been removed just before the pin was seen
    except CheckpointDamaged:
        storage.delete(_pin_name(number))
        raise


def unpin(storage: Storage, number: int) -> None:
    storage.delete(_pin_name(number))


def pinned_numbers(storage: Storage) -> set[int]:
    found = (PINNED.fullmatch(name) for name in storage.names())
    return {int(match[1]) for match in found if match}


def _pin_name(number: int) -> str:
    return f"{number:08d}.pinned"


# ── what goes ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def highest_number(storage: Storage) -> int:
    """The highest number of any file of a checkpoint, complete or not; 0 if there is none."""
    found = (NUMBERED.fullmatch(name) for name in storage.names())
    return max((int(match[1]) for match in found if match), default=0)


def parts_of(manifest: CheckpointManifest) -> tuple[FilePart, ...]:
    """All files of a checkpoint except its manifest."""
    return (*(file for shard in manifest.shards for file in shard.files), manifest.dispatcher)


def files_of(manifest: CheckpointManifest) -> set[str]:
    """Names of all files of a checkpoint except its manifest."""
    return {file.name for file in parts_of(manifest)}


def drop_old(storage: Storage, most: int) -> Retained:
    """Removes all checkpoints except those that are kept; most: number of newest ones. For a live run."""
    numbers = manifest_numbers(storage)
    choice = _choice(storage)
    known = _readable(storage, numbers)
    published = {number for number, manifest in known.items() if manifest.is_publication}
    newest = [number for number in numbers if number not in published][-most:]
    oldest = newest[0] if len(newest) == most else EMPTY_MODEL
    if choice is None:
        return Retained(tuple(numbers), oldest)
    good = [number for number, manifest in known.items() if choice.allows(manifest)]
    wanted = pinned_numbers(storage).union(newest, published.intersection(numbers[-SERVED:]))
    wanted.update([number for number in good if number not in published][-most:], _to_serve(storage, choice, good))
    kept = [number for number in numbers if number in wanted]
    gone = [number for number in numbers if number not in wanted]
    needed = _needed(storage, kept) if gone else None
    if needed is not None:
        remove(storage, gone, needed)
    return Retained(tuple(kept if needed is not None else numbers), oldest)


def _to_serve(storage: Storage, choice: Choice, good: list[int]) -> set[int]:
    """What servers serve or may start with; and, if there are any, what a rollback goes back to."""
    in_use = _in_use(storage, choice)
    newest = good[-1:]
    before = (max((each for each in good if each < number), default=number) for number in in_use.union(newest))
    return in_use.union(newest, before if in_use else ())


def _in_use(storage: Storage, choice: Choice) -> set[int]:
    """What servers serve, and what people want them to serve."""
    pinned = {choice.pinned} if choice.pinned is not None else set()
    return pinned.union(record.checkpoint for record in served_now(storage, time()))


def _choice(storage: Storage) -> Choice | None:
    """What people want served; None if that cannot be read."""
    try:
        return read_choice(storage)
    except CheckpointDamaged as error:
        structlog.get_logger().warning("no old checkpoints are removed", reason=str(error))
        return None


def _readable(storage: Storage, numbers: Iterable[int]) -> dict[int, CheckpointManifest]:
    """The manifests that can be read, in this order; a checkpoint without one counts as one to go back to."""
    found: dict[int, CheckpointManifest] = {}
    for number in numbers:
        with suppress(CheckpointDamaged):
            found[number] = read_manifest(storage, number)
    return found


def discard_after(storage: Storage, number: int) -> None:
    """Removes the manifests of checkpoints after one, whose steps are void; ``sweep`` removes their files.

    Pinned ones are kept, and what is served until there is something newer.
    """
    choice = _choice(storage) or Choice()
    kept = pinned_numbers(storage) | _in_use(storage, choice)
    for later in reversed(manifest_numbers(storage)):
        if later > number and later not in kept:
            storage.delete(manifest_name(later))


def sweep(storage: Storage) -> list[str]:
    """Removes the files that no manifest names, and returns their names. Only while no checkpoint is being taken."""
    names = storage.names()
    numbers = manifest_numbers(storage)
    needed = _needed(storage, numbers)
    if needed is None:
        return []
    needed |= {name for number in numbers for name in (manifest_name(number), _pin_name(number))}
    gone = [name for name in names if name not in needed and (NUMBERED.fullmatch(name) or name.endswith(PART))]
    for name in gone:
        storage.delete(name)
    return gone


def remove(storage: Storage, numbers: Iterable[int], needed: Collection[str]) -> None:
    """Removes checkpoints and the files that no other needs; all manifests first, since checkpoints share files."""
    files: set[str] = set()
    for number in numbers:
        with suppress(CheckpointDamaged):  # a sweep removes the files that only it names
            files |= files_of(read_manifest(storage, number))
        storage.delete(manifest_name(number))
    for name in sorted(files.difference(needed)):
        storage.delete(name)


def _needed(storage: Storage, numbers: Iterable[int]) -> set[str] | None:
    """The files that these checkpoints name; None if that cannot be determined."""
    try:
        return {name for number in numbers for name in files_of(read_manifest(storage, number))}
    except CheckpointDamaged as error:
        structlog.get_logger().warning("no files of old checkpoints are removed", reason=str(error))
        return None

"""Which cuts are kept, and which files: the newest cuts, pinned ones, and whatever one of them names.

Cuts that were taken only to be served do not count among the newest: there is one a second, and a run must be able to
go back further than that. Of these, those among the newest two cuts are kept, because servers may be reading them; and
the newest that may be served at all, however many have been held back since: a server that starts anew needs it.

    cuts/00000007.pinned    cut 7 stays until this file is removed ('freshet cuts unpin')

Cuts go in this order: their manifests, and then the files that no other manifest names. A crash in between leaves files
without a manifest, which ``sweep`` removes when the run is started again. While it goes on, only files of the cuts that
go are removed: shards write and merge files that no manifest names yet. If the manifest of a cut that stays cannot be
read, nothing is removed, because nobody knows what it needs.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

import structlog

from infra.storage import PART, Storage
from ps.cuts.choice import read_choice
from ps.cuts.manifest import CutManifest, manifest_name, manifest_numbers, read_manifest
from ps.errors import CutDamaged
from ps.protocol import EMPTY_MODEL, FilePart

PINNED = re.compile(r"(\d{8,})\.pinned")
SERVED = 2
"""newest cuts that are kept even if they were taken only to be served"""
NUMBERED = re.compile(r"(\d{8,})[./].+")
"""every file of a cut"""


class Retained(NamedTuple):
    """What is kept."""

    numbers: tuple[int, ...]
    """ascending"""
    oldest: int
    """of the newest ones, pinned or not: the run can go back to it, so journal and stream must reach back to it; the
    empty model counts as one, as long as there are fewer"""


# ── pins ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
def pin(storage: Storage, number: int) -> None:
    """Keeps a cut for good; raises CutDamaged if there is no such cut, or no more."""
    read_manifest(storage, number)
    storage.write(_pin_name(number), [b"\n"])
    try:
        read_manifest(storage, number)  # once more: it may have been removed just before the pin was seen
    except CutDamaged:
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
    """Of any file of a cut, whole or not; 0 if there is none."""
    found = (NUMBERED.fullmatch(name) for name in storage.names())
    return max((int(match[1]) for match in found if match), default=0)


def parts_of(manifest: CutManifest) -> tuple[FilePart, ...]:
    """All files of a cut but its manifest."""
    return (*(file for shard in manifest.shards for file in shard.files), manifest.dispatcher)


def files_of(manifest: CutManifest) -> set[str]:
    """Names of all files of a cut but its manifest."""
    return {file.name for file in parts_of(manifest)}


def drop_old(storage: Storage, most: int) -> Retained:
    """Removes all but the newest cuts, as many as that, and pinned ones. For a run that goes on."""
    numbers, pinned = manifest_numbers(storage), pinned_numbers(storage)
    readable = _readable(storage, numbers)
    served = {number for number, manifest in readable.items() if manifest.is_publication}
    newest = [number for number in numbers if number not in served][-most:]
    wanted = pinned.union(newest, served.intersection(numbers[-SERVED:]), _last_to_serve(storage, readable))
    kept = [number for number in numbers if number in wanted]
    gone = [number for number in numbers if number not in kept]
    needed = _needed(storage, kept) if gone else None
    if needed is not None:
        remove(storage, gone, needed)
    oldest = newest[0] if len(newest) == most else EMPTY_MODEL
    return Retained(tuple(kept if needed is not None else numbers), oldest)


def _readable(storage: Storage, numbers: Iterable[int]) -> dict[int, CutManifest]:
    """The manifests of these cuts, those left out that cannot be read."""
    found: dict[int, CutManifest] = {}
    for number in numbers:
        with suppress(CutDamaged):
            found[number] = read_manifest(storage, number)
    return found


def _last_to_serve(storage: Storage, readable: Mapping[int, CutManifest]) -> list[int]:
    """The newest cut that is good or released, if there is one."""
    released: tuple[int, ...] = ()
    with suppress(CutDamaged):
        released = read_choice(storage).released
    return [n for n in sorted(readable) if readable[n].verdict.is_good or n in released][-1:]


def discard_after(storage: Storage, number: int) -> None:
    """Removes the manifests of cuts after one, pinned ones left out: their steps are void. Files go with ``sweep``."""
    pinned = pinned_numbers(storage)
    for later in reversed(manifest_numbers(storage)):
        if later > number and later not in pinned:
            storage.delete(manifest_name(later))


def sweep(storage: Storage) -> list[str]:
    """Removes every file of a cut that no manifest names; returns their names. Only while no cut is being taken."""
    names, numbers = storage.names(), manifest_numbers(storage)
    needed = _needed(storage, numbers)
    if needed is None:
        return []
    needed |= {name for number in numbers for name in (manifest_name(number), _pin_name(number))}
    gone = [name for name in names if name not in needed and (NUMBERED.fullmatch(name) or name.endswith(PART))]
    for name in gone:
        storage.delete(name)
    return gone


def remove(storage: Storage, numbers: Iterable[int], needed: Collection[str]) -> None:
    """Removes cuts, and their files but for those that are needed: first all manifests, since cuts share files."""
    files: set[str] = set()
    for number in numbers:
        with suppress(CutDamaged):  # what only it names is left to a sweep
            files |= files_of(read_manifest(storage, number))
        storage.delete(manifest_name(number))
    for name in sorted(files.difference(needed)):
        storage.delete(name)


def _needed(storage: Storage, numbers: Iterable[int]) -> set[str] | None:
    """The files that these cuts name; None if that cannot be told."""
    try:
        return {name for number in numbers for name in files_of(read_manifest(storage, number))}
    except CutDamaged as error:
        structlog.get_logger().warning("no files of old cuts are removed", reason=str(error))
        return None

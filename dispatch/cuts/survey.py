"""What cuts there are, and whether they are whole; for people, while a run goes on or after it."""

from collections.abc import Iterable, Iterator

import msgspec

from dispatch.cuts.retention import parts_of, pinned_numbers
from dispatch.cuts.state import Decided, load_index, read_state
from infra.base.storage import Storage
from ps.cuts.files import verify
from ps.cuts.manifest import CutManifest, manifest_numbers, read_manifest
from ps.errors import CutDamaged
from ps.protocol import FilePart


class FoundCut(msgspec.Struct, frozen=True, kw_only=True):
    """One cut."""

    number: int
    is_pinned: bool
    manifest: CutManifest | None = None
    """None: it is damaged"""
    damage: str | None = None

    @property
    def files(self) -> tuple[FilePart, ...]:
        """Without its manifest."""
        return () if self.manifest is None else parts_of(self.manifest)


class CutContent(msgspec.Struct, frozen=True, kw_only=True):
    """One cut in full, without what training came to."""

    cut: FoundCut
    decided: Decided
    """by the dispatcher, up to the cut's step"""


class CutReport(msgspec.Struct, frozen=True, kw_only=True):
    """Whether one cut is whole."""

    number: int
    files: int
    """its manifest included"""
    nbytes: int
    """of the others"""
    damage: tuple[str, ...]
    """each naming a file; empty: it is whole"""


def find_cuts(storage: Storage) -> list[FoundCut]:
    """All cuts, ascending; those that are removed meanwhile are left out."""
    pinned = pinned_numbers(storage)
    found = (_find(storage, number, pinned) for number in manifest_numbers(storage))
    return [cut for cut in found if cut is not None]


def describe_cut(storage: Storage, number: int) -> CutContent:
    """One cut; raises CutDamaged, which names the file, if there is none or it cannot be read."""
    manifest = read_manifest(storage, number)
    cut = FoundCut(number=number, is_pinned=number in pinned_numbers(storage), manifest=manifest)
    return CutContent(cut=cut, decided=read_state(storage, manifest).decided)


def verify_cuts(storage: Storage, numbers: Iterable[int]) -> Iterator[CutReport]:
    """Reads every file of these cuts, each once; cuts that are removed meanwhile are left out."""
    checked: dict[FilePart, str | None] = {}
    for number in numbers:
        verdict = _verify_cut(storage, number, checked)
        if not verdict.damage or number in manifest_numbers(storage):
            yield verdict


def _verify_cut(storage: Storage, number: int, checked: dict[FilePart, str | None]) -> CutReport:
    try:
        manifest = read_manifest(storage, number)
    except CutDamaged as error:
        return CutReport(number=number, files=0, nbytes=0, damage=(str(error),))
    files = parts_of(manifest)
    for file in files:
        if file not in checked:
            checked[file] = _damage_of(storage, file)
    damage = tuple(found for file in files if (found := checked[file]) is not None)
    if not damage:
        damage = _damage_inside(storage, manifest)
    return CutReport(number=number, files=len(files) + 1, nbytes=sum(file.nbytes for file in files), damage=damage)


def _damage_of(storage: Storage, file: FilePart) -> str | None:
    try:
        verify(storage, file)
    except CutDamaged as error:
        return str(error)
    return None


def _damage_inside(storage: Storage, manifest: CutManifest) -> tuple[str, ...]:
    """Whether files that are what was written make a whole cut."""
    try:
        load_index(storage, manifest)
        read_state(storage, manifest)
    except CutDamaged as error:
        return (str(error),)
    return ()


def _find(storage: Storage, number: int, pinned: set[int]) -> FoundCut | None:
    is_pinned = number in pinned
    try:
        return FoundCut(number=number, is_pinned=is_pinned, manifest=read_manifest(storage, number))
    except CutDamaged as error:
        if number not in manifest_numbers(storage):
            return None
        return FoundCut(number=number, is_pinned=is_pinned, damage=str(error))

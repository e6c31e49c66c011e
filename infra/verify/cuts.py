"""Checks of the cuts of a run: whole, on record, and without files that belong to none."""

from pathlib import Path

from infra.run.figures import count
from infra.run.settings import read_stored
from infra.storage import Storage
from infra.verify.finding import NotChecked, Violated, check
from infra.verify.journal import read_run
from infra.verify.leftovers import named
from ps.cuts.files import verify
from ps.cuts.manifest import CutManifest, manifest_numbers, read_manifest
from ps.protocol import FilePart


@check("cuts whole")
def check_cuts(folder: Path) -> str:
    """Every file that a cut names is there, unchanged."""
    storage = cuts_of(folder)
    manifests = read_manifests(storage)
    parts = {part.name: part for manifest in manifests for part in parts_of(manifest)}
    for part in parts.values():
        verify(storage, part)
    return f"{count(len(manifests), 'cut')} of {count(len(parts), 'file')}"


@check("newest cut there")
def check_newest_cut(folder: Path) -> str:
    """The newest cut of the journal has a manifest, of the same step."""
    history, storage = read_run(folder), cuts_of(folder)
    if not history.cuts:
        raise NotChecked("the journal has no cut")
    newest = history.cuts[-1]
    if newest.number not in manifest_numbers(storage):
        raise Violated(f"cut {newest.number} is in the journal and has no manifest")
    if (step := read_manifest(storage, newest.number).step) != newest.step:
        raise Violated(f"cut {newest.number} was taken after step {step}; expected step {newest.step}, by the journal")
    return f"cut {newest.number} after step {newest.step}"


@check("no unreferenced file")
def check_unreferenced(folder: Path) -> str:
    """Every file of the cuts belongs to one."""
    storage = cuts_of(folder)
    if read_run(folder).ended is None:
        raise NotChecked("the run is not over, and goes on with removing what a failed cut left")
    parts = {part.name for manifest in read_manifests(storage) for part in parts_of(manifest)}
    there = {name for name in storage.names() if "/" in name}
    if strays := sorted(there - parts):
        raise Violated(f"files belong to no cut: {named(strays)}")
    return f"none among {count(len(there), 'file')}"


def cuts_of(folder: Path) -> Storage:
    """Where the cuts of a run are; raises NotChecked if there are none."""
    storage = Storage.at(read_stored(folder).cuts.url or folder / "cuts")
    if not storage.names():
        raise NotChecked("the run has no cuts")
    return storage


def read_manifests(storage: Storage) -> list[CutManifest]:
    """Those of all cuts, oldest first."""
    return [read_manifest(storage, number) for number in manifest_numbers(storage)]


def parts_of(manifest: CutManifest) -> list[FilePart]:
    return [*(file for shard in manifest.shards for file in shard.files), manifest.dispatcher]

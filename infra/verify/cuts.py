"""Checks of the cuts of a run: whole, on record, and without files that belong to none."""

from pathlib import Path

from dispatch.cuts.retention import files_of
from dispatch.cuts.survey import verify_cuts
from infra.base.storage import Storage
from infra.run.figures import count, size
from infra.run.settings import read_stored
from infra.verify.finding import NotChecked, Violated, check
from infra.verify.journal import read_run
from infra.verify.leftovers import named
from ps.cuts.manifest import CutManifest, manifest_numbers, read_manifest


@check("cuts whole")
def check_cuts(folder: Path) -> str:
    """Every file that a cut names is there and unchanged, and together they make a whole cut."""
    storage = cuts_of(folder)
    verdicts = list(verify_cuts(storage, manifest_numbers(storage)))
    if damage := [problem for verdict in verdicts for problem in verdict.damage]:
        raise Violated("; ".join(dict.fromkeys(damage)))
    return f"{count(len(verdicts), 'cut')}, {size(sum(verdict.nbytes for verdict in verdicts))}"


@check("newest cut there")
def check_newest_cut(folder: Path) -> str:
    """The newest cut of the journal has a manifest, of the same step."""
    history, storage = read_run(folder), open_cuts(folder)
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
    parts = {name for manifest in read_manifests(storage) for name in files_of(manifest)}
    there = {name for name in storage.names() if "/" in name}
    if strays := sorted(there - parts):
        raise Violated(f"files belong to no cut: {named(strays)}")
    return f"none among {count(len(there), 'file')}"


def cuts_of(folder: Path) -> Storage:
    """Where the cuts of a run are; raises NotChecked if there are none."""
    storage = open_cuts(folder)
    if not storage.names():
        raise NotChecked("the run has no cuts")
    return storage


def open_cuts(folder: Path) -> Storage:
    return Storage.at(read_stored(folder).cuts.url or folder / "cuts")


def read_manifests(storage: Storage) -> list[CutManifest]:
    """Those of all cuts, oldest first."""
    return [read_manifest(storage, number) for number in manifest_numbers(storage)]

"""Checks of the checkpoints of a run: whole, recorded, and without files that belong to none."""

from pathlib import Path

from dispatch.checkpoints.retention import files_of
from dispatch.checkpoints.survey import verify_checkpoints
from infra.base.storage import Storage
from infra.run.figures import count, size
from infra.run.folder import checkpoint_place
from infra.run.settings import read_stored
from infra.verify.finding import NotChecked, Violated, check
from infra.verify.journal import read_run
from infra.verify.leftovers import named
from ps.checkpoints.manifest import CheckpointManifest, manifest_numbers, read_manifest


@check("checkpoints whole")
def check_checkpoints(folder: Path) -> str:
    """Every file that a checkpoint names exists unchanged, and together they make a whole checkpoint."""
    storage = checkpoints_of(folder)
    verdicts = list(verify_checkpoints(storage, manifest_numbers(storage)))
    if damage := [problem for verdict in verdicts for problem in verdict.damage]:
        raise Violated("; ".join(dict.fromkeys(damage)))
    return f"{count(len(verdicts), 'checkpoint')}, {size(sum(verdict.nbytes for verdict in verdicts))}"


@check("newest checkpoint there")
def check_newest_checkpoint(folder: Path) -> str:
    """The newest checkpoint of the journal has a manifest, of the same step."""
    history = read_run(folder)
    storage = open_checkpoints(folder)
    if not history.checkpoints:
        raise NotChecked("the journal has no checkpoint")
    newest = history.checkpoints[-1]
    if newest.number not in manifest_numbers(storage):
        raise Violated(f"checkpoint {newest.number} is in the journal and has no manifest")
    if (step := read_manifest(storage, newest.number).step) != newest.step:
        raise Violated(
            f"checkpoint {newest.number} was taken after step {step}; expected step {newest.step}, by the journal"
        )
    return f"checkpoint {newest.number} after step {newest.step}"


@check("no unreferenced file")
def check_unreferenced(folder: Path) -> str:
    """Every file of the checkpoints belongs to one."""
    storage = checkpoints_of(folder)
    if read_run(folder).ended is None:
        raise NotChecked("the run has not ended, and will remove what a failed checkpoint left when it is resumed")
    parts = {name for manifest in read_manifests(storage) for name in files_of(manifest)}
    there = {name for name in storage.names() if "/" in name}
    if strays := sorted(there - parts):
        raise Violated(f"files belong to no checkpoint: {named(strays)}")
    return f"none among {count(len(there), 'file')}"


def checkpoints_of(folder: Path) -> Storage:
    """The storage of a run's checkpoints; raises NotChecked if there are none."""
    storage = open_checkpoints(folder)
    if not storage.names():
        raise NotChecked("the run has no checkpoints")
    return storage


def open_checkpoints(folder: Path) -> Storage:
    return Storage.at(checkpoint_place(folder, read_stored(folder).checkpoints.url))


def read_manifests(storage: Storage) -> list[CheckpointManifest]:
    """Manifests of all checkpoints, oldest first."""
    return [read_manifest(storage, number) for number in manifest_numbers(storage)]

"""Snapshots of a learner, in the folder and the files of a run.

folder/settings.json                      as a run stores them
    checkpoints/00000001.json             the manifest, written last
    checkpoints/00000001/shard-0-UNIQUE.safetensors
    checkpoints/00000001/dispatcher-UNIQUE.safetensors   how many samples were learnt
"""

from dataclasses import dataclass
from pathlib import Path
from time import time

import msgspec
import numpy as np
from safetensors.numpy import load, save

from dispatch.journal.history import JOURNAL
from freshet.sole import SoleWorker
from infra.base.errors import ConfigError
from infra.base.run_folder import is_run
from infra.base.storage import Storage
from infra.run.folder import checkpoint_place
from infra.run.settings import Settings, read_stored, store_settings
from ps.checkpoints.files import new_name, write_chunks, write_columns
from ps.checkpoints.manifest import CheckpointManifest, ShardPart, manifest_numbers, read_manifest, write_manifest
from ps.protocol import EMPTY_MODEL

SAMPLES = "learner_samples"
"""Entry of the dispatcher's file."""


@dataclass(frozen=True)
class BegunModel:
    """A model to begin or to go on with."""

    settings: Settings
    storage: Storage | None = None
    checkpoint: int = EMPTY_MODEL
    step: int = 0
    samples: int = 0
    """Samples that it has learnt from."""


def write_snapshot(folder: Path, settings: Settings, worker: SoleWorker, samples: int) -> int:
    """Writes the next snapshot of a folder; the manifest comes last, and without it there is none."""
    if (folder / JOURNAL).exists():
        raise ConfigError(
            f"{folder} belongs to a run, whose checkpoints follow from its journal; expected a folder of the learner's "
            "own; save into another one"
        )
    if is_run(folder):
        _check_same(read_stored(folder), settings, folder)
    else:
        store_settings(settings.model_copy(update={"folder": folder}))
    storage = Storage.at(checkpoint_place(folder))
    number = max(manifest_numbers(storage), default=0) + 1
    columns = worker.columns()
    rows = write_columns(storage, new_name(number, "shard", 0), columns)
    counted = save({SAMPLES: np.array([samples], np.int64)})
    write_manifest(
        storage,
        CheckpointManifest(
            run=settings.run,
            number=number,
            step=worker.step,
            generation=0,
            at_seconds=time(),
            shards=(ShardPart(0, columns.numbers_K.size, (rows,)),),
            dispatcher=write_chunks(storage, new_name(number, "dispatcher", 0), [counted], 0),
        ),
    )
    return number


def read_saved(folder: Path, checkpoint: int | None) -> BegunModel:
    """A snapshot of a learner or of a run. Raises ConfigError if there is none, CheckpointDamaged for a damaged one."""
    settings = read_stored(folder)
    storage = Storage.at(checkpoint_place(folder, settings.checkpoints.url))
    there = manifest_numbers(storage)
    if not there or (checkpoint is not None and checkpoint not in there):
        raise ConfigError(
            f"{folder} has snapshots {there or 'none'}, and {'any' if checkpoint is None else checkpoint} was asked "
            "for; expected one of those; name one, or save one first"
        )
    number = there[-1] if checkpoint is None else checkpoint
    manifest = read_manifest(storage, number)
    return BegunModel(settings, storage, number, manifest.step, _samples_of(storage, manifest))


def _samples_of(storage: Storage, manifest: CheckpointManifest) -> int:
    """Samples that a learner had learnt from; a run's batches are taken as full, since its model has seen many."""
    content = load(bytes(storage.read(manifest.dispatcher.name)))
    return int(content[SAMPLES][0]) if SAMPLES in content else np.iinfo(np.int64).max // 2


def _check_same(there: Settings, given: Settings, folder: Path) -> None:
    ours, theirs = (msgspec.to_builtins(each.model_dump(mode="json", exclude={"folder"})) for each in (given, there))
    if differing := sorted(name for name in ours if ours[name] != theirs[name]):
        raise ConfigError(
            f"{folder} has a model with other settings of {', '.join(differing)}; expected those of this learner; save "
            "into another folder"
        )

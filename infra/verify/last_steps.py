"""Check of the rows in the newest checkpoint: each was last changed by the last step that used its key.

Legend: K rows or keys, F keys per sample, B samples.
"""

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dispatch.checkpoints.state import load_index
from dispatch.journal.history import History
from dispatch.journal.records import StepDecided
from infra.base.storage import Storage
from infra.run.figures import count
from infra.run.settings import Settings, read_stored
from infra.verify.checkpoints import checkpoints_of, read_manifests
from infra.verify.finding import NotChecked, Violated, check
from infra.verify.journal import read_run
from ingest.batches.replay import form_batch
from ingest.errors import BrokerError, SourceError
from ingest.opening import open_source
from ps.checkpoints.manifest import CheckpointManifest
from ps.keys import FREE

LastSteps = tuple[NDArray[np.uint64], NDArray[np.int64]]
"""Keys, ascending, each once, and the last step of each."""


@check("last steps of rows")
def check_last_steps(folder: Path) -> str:
    """In the newest checkpoint, a row's last step is the last step of the journal that used its key, and no key is
    there that was forgotten since.
    """
    history = read_run(folder)
    settings = read_stored(folder)
    storage = checkpoints_of(folder)
    on_record = {checkpoint.number for checkpoint in history.begun_checkpoints}  # without those whose steps are void
    manifests = [manifest for manifest in read_manifests(storage) if manifest.number in on_record]
    if not manifests:
        raise NotChecked("no checkpoint is on record")
    newest = manifests[-1]
    steps = [step for step in history.steps if step.step <= newest.step]
    forgotten = max((step.forget_before for step in steps), default=0)
    return compare(last_steps_in(storage, newest), last_steps_by(settings, steps), history, newest, forgotten)


def compare(
    in_checkpoint: LastSteps, by_steps: LastSteps, history: History, newest: CheckpointManifest, forgotten: int = 0
) -> str:
    """forgotten: keys that were last used before this step are no longer known; 0: all are."""
    keys_K, last_steps_K = in_checkpoint
    used_K, steps_K = by_steps
    is_known_K = steps_K >= forgotten
    if (left := np.intersect1d(used_K[~is_known_K], keys_K)).size:
        raise Violated(f"checkpoint {newest.number} has {count(left.size, 'key')} that its steps forgot")
    used_K, steps_K = used_K[is_known_K], steps_K[is_known_K]
    if (missing := np.setdiff1d(used_K, keys_K)).size:
        raise Violated(f"checkpoint {newest.number} lacks {count(missing.size, 'key')} that its steps used")
    is_used_K = np.isin(keys_K, used_K)
    expected_K = steps_K[np.searchsorted(used_K, keys_K[is_used_K])]
    wrong = int((last_steps_K[is_used_K] != expected_K).sum())
    wrong += int((last_steps_K[~is_used_K] > history.base.step).sum())
    if wrong:
        raise Violated(
            f"{count(wrong, 'row')} of checkpoint {newest.number} have another last step than the last one that used "
            "their key"
        )
    used = f"{count(used_K.size, 'key')} used by steps on record"
    return f"{count(keys_K.size, 'row')} of checkpoint {newest.number}, {used}"


def last_steps_in(storage: Storage, manifest: CheckpointManifest) -> LastSteps:
    """Last steps of all keys that a checkpoint knows."""
    saved = load_index(storage, manifest)
    (known_K,) = np.nonzero(saved.keys_R != FREE)
    order_K = known_K[np.argsort(saved.keys_R[known_K])]
    return saved.keys_R[order_K], saved.last_steps_R[order_K]


def last_steps_by(settings: Settings, steps: Iterable[StepDecided]) -> LastSteps:
    """Last steps of all keys that these steps used; reads their events again."""
    found = []
    try:
        with closing(open_source(settings.stream, settings.kafka)) as source:
            for step in steps:
                keys_BF = form_batch(source, settings.event_schema, step.manifest.ranges).samples.keys_BF
                keys_K = np.unique(keys_BF)
                found.append((keys_K, np.full(keys_K.size, step.step, np.int64)))
    except (SourceError, BrokerError) as error:
        raise NotChecked(f"the stream cannot be read: {error}") from error
    return newest_of(found)


def newest_of(parts: Iterable[LastSteps]) -> LastSteps:
    """Joins parts: if several have a key, the last one counts."""
    several = list(parts)
    if not several:
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    keys_K, last_steps_K = (np.concatenate(column)[::-1] for column in zip(*several, strict=True))
    unique_K, first_K = np.unique(keys_K, return_index=True)
    return unique_K, last_steps_K[first_K]

"""Check of the rows in the newest checkpoint: each was last changed by the last step that used its key.

Legend: K rows or keys, F keys per sample, B samples.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dispatch.checkpoints.state import load_index
from dispatch.journal.history import History
from dispatch.journal.records import StepDecided
from dispatch.placement.rows.admission import Admission, AdmissionTerms
from dispatch.placement.rows.index import NO_ROWS, Index
from infra.base.distinct import number_keys
from infra.base.storage import Storage
from infra.run.figures import count
from infra.run.settings import Settings, read_stored
from infra.verify.checkpoints import checkpoints_of, read_manifests
from infra.verify.finding import NotChecked, Violated, check
from infra.verify.journal import read_run
from ingest.batches.replay import form_batch
from ingest.errors import BrokerError, SourceError
from ingest.keys import rare_keys
from ingest.opening import open_source
from ps.checkpoints.manifest import CheckpointManifest
from ps.keys import FREE
from ps.protocol import EMPTY_MODEL

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
    if not any(step.forget_before or step.admitted is not None for step in steps):
        by_steps = last_steps_by(settings, steps)
    elif history.base.number == EMPTY_MODEL:
        by_steps = KnownKeys(settings).after(steps)
    else:
        raise NotChecked(
            "keys were forgotten or rare, and the journal no longer has the steps that say which; raise "
            "checkpoints.kept to keep more of them"
        )
    return compare(last_steps_in(storage, newest), by_steps, history, newest)


def compare(in_checkpoint: LastSteps, by_steps: LastSteps, history: History, newest: CheckpointManifest) -> str:
    keys_K, last_steps_K = in_checkpoint
    used_K, steps_K = by_steps
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


class KnownKeys:
    """The keys that steps leave known, if all steps of a run are on record: not those that they forgot, or that were
    rare.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._index = Index()
        self._admission = Admission(AdmissionTerms(), rare_keys(settings.event_schema.key_tables))
        self._steps_R = np.empty(0, np.int64)
        """The last step that used each row; as long as the index, or longer."""
        self._hot = NO_ROWS
        """Rows that are replicated, and so not forgotten."""
        self._generation = 0

    def after(self, steps: Iterable[StepDecided]) -> LastSteps:
        for step, keys_BF in keys_of(self._settings, steps):
            self._add(step, keys_BF)
        (known_K,) = np.nonzero(self._index.keys != FREE)
        order_K = known_K[np.argsort(self._index.keys[known_K])]
        return self._index.keys[order_K].copy(), self._steps_R[order_K]

    def _add(self, step: StepDecided, keys_BF: NDArray[np.uint64]) -> None:
        if step.manifest.generation != self._generation:  # it begins without replicas
            self._generation, self._hot = step.manifest.generation, NO_ROWS
        if step.forget_before:
            self._forget(step.forget_before)
        if step.admitted is not None:
            keys_BF = self._admission.repeat(keys_BF, self._index.knows(keys_BF), step.admitted)
        rows = self._index.resolve(number_keys(keys_BF))
        if self._index.count > self._steps_R.size:
            self._steps_R = np.concatenate((self._steps_R, np.zeros(self._index.count, np.int64)))
        self._steps_R[rows.rows_U] = step.step
        if (hot := step.hot_rows()) is not None:
            self._hot = hot

    def _forget(self, before: int) -> None:
        is_old_R = (self._steps_R[: self._index.count] < before) & (self._index.keys != FREE)
        is_old_R[self._hot] = False
        self._index.forget(np.flatnonzero(is_old_R))


def last_steps_by(settings: Settings, steps: Iterable[StepDecided]) -> LastSteps:
    """Last steps of all keys that these steps used."""
    used = ((np.unique(keys_BF), step.step) for step, keys_BF in keys_of(settings, steps))
    return newest_of((keys_K, np.full(keys_K.size, step, np.int64)) for keys_K, step in used)


def keys_of(settings: Settings, steps: Iterable[StepDecided]) -> Iterator[tuple[StepDecided, NDArray[np.uint64]]]:
    """The keys of each step with samples; reads its events again."""
    try:
        with closing(open_source(settings.stream, settings.kafka)) as source:
            for step in steps:
                samples = form_batch(source, settings.event_schema, step.manifest.ranges).samples
                if len(samples):
                    yield step, samples.keys_BF
    except (SourceError, BrokerError) as error:
        raise NotChecked(f"the stream cannot be read: {error}") from error


def newest_of(parts: Iterable[LastSteps]) -> LastSteps:
    """Joins parts: if several have a key, the last one counts."""
    several = list(parts)
    if not several:
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    keys_K, last_steps_K = (np.concatenate(column)[::-1] for column in zip(*several, strict=True))
    unique_K, first_K = np.unique(keys_K, return_index=True)
    return unique_K, last_steps_K[first_K]

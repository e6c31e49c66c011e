"""Lists checkpoints and checks whether they are whole; for people, during a run or afterwards."""

from collections.abc import Iterable, Iterator

import msgspec

from dispatch.checkpoints.retention import parts_of, pinned_numbers
from dispatch.checkpoints.state import Decided, load_index, read_state
from dispatch.progress.over_time import OverTime
from dispatch.progress.quality import DriftStatus, QualityOverTime
from infra.base.storage import Storage
from ps.checkpoints.files import verify
from ps.checkpoints.manifest import CheckpointManifest, manifest_numbers, read_manifest
from ps.errors import CheckpointDamaged
from ps.protocol import FilePart


class FoundCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint."""

    number: int
    is_pinned: bool
    manifest: CheckpointManifest | None = None
    """The manifest; None: it is damaged."""
    damage: str | None = None

    @property
    def files(self) -> tuple[FilePart, ...]:
        """Its files without its manifest."""
        return () if self.manifest is None else parts_of(self.manifest)


class CheckpointContent(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint in full, without the results of training."""

    checkpoint: FoundCheckpoint
    decided: Decided
    """What the dispatcher had decided up to the checkpoint's step."""


class CheckpointReport(msgspec.Struct, frozen=True, kw_only=True):
    """Whether one checkpoint is whole."""

    number: int
    files: int
    """Number of its files, including its manifest."""
    nbytes: int
    """Bytes of the others."""
    damage: tuple[str, ...]
    """Messages, each naming a file; empty: it is whole."""


class MeasuredQuality(msgspec.Struct, frozen=True, kw_only=True):
    """Quality over time, and how much the stream has changed."""

    over_time: QualityOverTime = QualityOverTime()
    drift: DriftStatus = DriftStatus()


def find_checkpoints(storage: Storage) -> list[FoundCheckpoint]:
    """All checkpoints, ascending; those that are removed meanwhile are omitted."""
    pinned = pinned_numbers(storage)
    found = (_find(storage, number, pinned) for number in manifest_numbers(storage))
    return [checkpoint for checkpoint in found if checkpoint is not None]


def describe_checkpoint(storage: Storage, number: int) -> CheckpointContent:
    """One checkpoint; raises CheckpointDamaged, which names the file, if there is none or it cannot be read."""
    manifest = read_manifest(storage, number)
    checkpoint = FoundCheckpoint(number=number, is_pinned=number in pinned_numbers(storage), manifest=manifest)
    return CheckpointContent(checkpoint=checkpoint, decided=read_state(storage, manifest).decided)


def read_quality(storage: Storage) -> MeasuredQuality:
    """What was measured up to the newest checkpoint, with the slices of every window; empty if there is none."""
    found = [checkpoint.manifest for checkpoint in find_checkpoints(storage) if checkpoint.manifest is not None]
    trained = read_state(storage, found[-1]).trained if found else None
    if trained is None or trained.over_time is None:
        return MeasuredQuality()
    restored = OverTime({}, len(trained.over_time.slices), trained.over_time.window_samples)
    restored.load(trained.over_time)
    drift = DriftStatus() if trained.drift is None else trained.drift.status
    return MeasuredQuality(over_time=restored.report(is_whole=True), drift=drift)


def verify_checkpoints(storage: Storage, numbers: Iterable[int]) -> Iterator[CheckpointReport]:
    """Reads every file of these checkpoints, each once; checkpoints that are removed meanwhile are omitted."""
    checked: dict[FilePart, str | None] = {}
    for number in numbers:
        verdict = _verify_checkpoint(storage, number, checked)
        if not verdict.damage or number in manifest_numbers(storage):
            yield verdict


def _verify_checkpoint(storage: Storage, number: int, checked: dict[FilePart, str | None]) -> CheckpointReport:
    try:
        manifest = read_manifest(storage, number)
    except CheckpointDamaged as error:
        return CheckpointReport(number=number, files=0, nbytes=0, damage=(str(error),))
    files = parts_of(manifest)
    for file in files:
        if file not in checked:
            checked[file] = _damage_of(storage, file)
    damage = tuple(found for file in files if (found := checked[file]) is not None)
    if not damage:
        damage = _damage_inside(storage, manifest)
    return CheckpointReport(
        number=number, files=len(files) + 1, nbytes=sum(file.nbytes for file in files), damage=damage
    )


def _damage_of(storage: Storage, file: FilePart) -> str | None:
    try:
        verify(storage, file)
    except CheckpointDamaged as error:
        return str(error)
    return None


def _damage_inside(storage: Storage, manifest: CheckpointManifest) -> tuple[str, ...]:
    """Whether undamaged files make up a whole checkpoint."""
    try:
        load_index(storage, manifest)
        read_state(storage, manifest)
    except CheckpointDamaged as error:
        return (str(error),)
    return ()


def _find(storage: Storage, number: int, pinned: set[int]) -> FoundCheckpoint | None:
    is_pinned = number in pinned
    try:
        return FoundCheckpoint(number=number, is_pinned=is_pinned, manifest=read_manifest(storage, number))
    except CheckpointDamaged as error:
        if number not in manifest_numbers(storage):
            return None
        return FoundCheckpoint(number=number, is_pinned=is_pinned, damage=str(error))

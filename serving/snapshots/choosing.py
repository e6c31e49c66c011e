"""Records which snapshot operators want, beside the checkpoints: it works while training, serving and SQL are down.

A checkpoint that the choice names is kept (``dispatch.checkpoints.retention``), and with it the good snapshot before.
So pin, unpin and rollback each write one file, and leave the pins of 'freshet checkpoints pin' unchanged.

The rules are here, so that they hold for people and programs alike: a good snapshot cannot be released, and unpinning
needs a pin. Whoever requests that is mistaken about what is served.

A damaged choice file is replaced by a pin or an unpin; which snapshots had been released is forgotten then.
"""

from collections.abc import Iterable
from time import time

import msgspec
import structlog

from infra.base.errors import ConfigError, FreshetError
from infra.base.storage import Storage
from ps.checkpoints.choice import Choice, read_choice, write_choice
from ps.checkpoints.manifest import CheckpointManifest, read_manifest
from ps.errors import CheckpointDamaged
from serving.snapshot_id import SnapshotId, candidates, snapshot_id_of

MOST_RELEASED = 1000


class NoSuchCheckpoint(FreshetError):
    """A checkpoint that should be pinned or released does not exist, or cannot be read."""


class NoOlderSnapshot(ConfigError):
    """There is no snapshot to go back to."""


class NothingToChange(ConfigError):
    """The request would change nothing: the snapshot is good, or none is pinned."""


def choose_pin(storage: Storage, checkpoint: int, actor: str, reason: str) -> Choice:
    """Serves this checkpoint until it is unpinned; raises NoSuchCheckpoint."""
    before = _read_unless_damaged(storage) or Choice()
    _find(storage, checkpoint, "pinned")
    choice = _write(storage, before, actor, reason, pinned=checkpoint)
    try:
        _find(storage, checkpoint, "pinned")  # again: retention may have removed it just before it could see the choice
    except NoSuchCheckpoint:
        write_choice(storage, before)
        raise
    return choice


def choose_newest(storage: Storage, actor: str, reason: str) -> Choice:
    """Serves the newest good snapshot again; raises NothingToChange if nothing is pinned."""
    before = _read_unless_damaged(storage)
    if before is not None and before.pinned is None:
        raise NothingToChange(
            "no snapshot is pinned; expected one that is; see 'freshet snapshots list', or GET /v1/snapshots, for what "
            "is served now"
        )
    return _write(storage, before or Choice(), actor, reason, pinned=None)


def choose_before(
    storage: Storage, manifests: Iterable[CheckpointManifest], served: SnapshotId | None, actor: str, reason: str
) -> Choice:
    """Goes back: pins the newest snapshot that may be served and is older than the served one.

    ``served`` is what a server serves, or the newest that any serves; None: not known, and the wanted one counts
    instead.
    Raises NoOlderSnapshot if there is nothing to go back to.
    """
    choice = read_choice(storage)
    known = list(manifests)
    target = snapshot_before(known, choice, served)
    if target is None:
        raise NoOlderSnapshot(
            "no older snapshot may be served; expected one to go back to; pin one with 'freshet snapshots pin', or PUT "
            "/v1/snapshots/pin"
        )
    return choose_pin(storage, target.number, actor, reason)


def choose_release(storage: Storage, checkpoint: int, actor: str, reason: str) -> Choice:
    """Releases a checkpoint that is held back; raises NoSuchCheckpoint, and NothingToChange if it is not held back."""
    before = read_choice(storage)
    if _find(storage, checkpoint, "released").verdict.is_good:
        raise NothingToChange(
            f"checkpoint {checkpoint} is not held back; expected one that is; see 'freshet snapshots list', or GET "
            "/v1/snapshots"
        )
    released = tuple(number for number in before.released if number != checkpoint)
    return _write(storage, before, actor, reason, released=(*released, checkpoint)[-MOST_RELEASED:])


def wanted_of(manifests: Iterable[CheckpointManifest], choice: Choice) -> CheckpointManifest | None:
    """The snapshot that a server started now would serve."""
    return next(candidates(manifests, choice, None, True), None)


def snapshot_before(
    manifests: Iterable[CheckpointManifest], choice: Choice, served: SnapshotId | None = None
) -> CheckpointManifest | None:
    """The target of a rollback; None if there is none. A pinned snapshot counts as served, because it soon will be."""
    known = list(manifests)
    if choice.pinned is not None or served is None:
        wanted = wanted_of(known, choice)
        served = None if wanted is None else snapshot_id_of(wanted)
    older = [each for each in known if served is not None and snapshot_id_of(each) < served and choice.allows(each)]
    return max(older, key=snapshot_id_of, default=None)


def _find(storage: Storage, checkpoint: int, change: str) -> CheckpointManifest:
    try:
        return read_manifest(storage, checkpoint)
    except CheckpointDamaged as error:
        raise NoSuchCheckpoint(f"checkpoint {checkpoint} cannot be {change}: {error}") from error


def _read_unless_damaged(storage: Storage) -> Choice | None:
    """The present choice; None if its file is damaged, and about to be replaced."""
    try:
        return read_choice(storage)
    except CheckpointDamaged as error:
        structlog.get_logger().warning("the choice is written anew; what was released is forgotten", reason=str(error))
        return None


def _write(storage: Storage, before: Choice, actor: str, reason: str, **changed: object) -> Choice:
    choice = msgspec.structs.replace(before, actor=actor, reason=reason, at_seconds=time(), **changed)
    write_choice(storage, choice)
    return choice

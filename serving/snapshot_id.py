"""Ids of snapshots, and which snapshot is to be served.

The newest good snapshot is served, or one that a person released although its verdict holds it back; a pinned one is
served whatever its verdict. Nothing older than the served snapshot takes its place, unless a person pins it or removes
a pin. The timeline is raised when recovery discards steps, so of two snapshots the newer one has the larger id.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ps.checkpoints.choice import Choice
from ps.checkpoints.manifest import CheckpointManifest


class SnapshotId(NamedTuple):
    """Names a snapshot; ordered by timeline, then step."""

    timeline: int
    step: int
    checkpoint: int
    """Number of the checkpoint that is published as this snapshot."""


def snapshot_id_of(manifest: CheckpointManifest) -> SnapshotId:
    return SnapshotId(manifest.timeline, manifest.step, manifest.number)


def candidates(
    manifests: Iterable[CheckpointManifest], choice: Choice, served: SnapshotId | None, may_go_back: bool
) -> Iterator[CheckpointManifest]:
    """Snapshots that should replace the served one, best first; none if the served one is wanted.

    ``may_go_back``: an operator has changed what is wanted since the served one was swapped in.
    """
    if choice.pinned is not None:
        if served is None or served.checkpoint != choice.pinned:
            yield from (manifest for manifest in manifests if manifest.number == choice.pinned)
        return
    for manifest in sorted(manifests, key=snapshot_id_of, reverse=True):
        is_wanted = choice.allows(manifest)
        if served is not None and manifest.number == served.checkpoint and is_wanted:
            return
        if served is not None and not may_go_back and snapshot_id_of(manifest) <= served:
            return
        if is_wanted:
            yield manifest


def why_held(manifests: Iterable[CheckpointManifest], choice: Choice, served: SnapshotId) -> str:
    """Why the newest snapshot is held back; empty: the served one is the newest, or a pin is the reason."""
    newer = [manifest for manifest in manifests if snapshot_id_of(manifest) > served and not choice.allows(manifest)]
    if choice.pinned is not None or not newer:
        return ""
    newest = max(newer, key=snapshot_id_of)
    found = "1 newer snapshot is" if len(newer) == 1 else f"{len(newer)} newer are"
    return (
        f"{found} held back; the newest, checkpoint {newest.number} after step "
        f"{newest.step}: {'; '.join(newest.verdict.reasons)}; expected a good one; wait for the next, or release this"
    )

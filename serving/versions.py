"""Versions of the model, and which of them is to be served.

A version is (timeline, step); a timeline begins where recovery discards steps, which are decided anew. The newest good
version is served, or one that a person released although its verdict holds it back; a pinned one is served whatever its
verdict. Nothing older than what is served takes its place, unless a person pins it or removes a pin.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ps.checkpoints.choice import Choice
from ps.checkpoints.manifest import CheckpointManifest


class Version(NamedTuple):
    """Of a model; ordered by line, then step."""

    timeline: int
    step: int
    checkpoint: int
    """the number of the checkpoint that it is read from"""


def version_of(manifest: CheckpointManifest) -> Version:
    return Version(manifest.timeline, manifest.step, manifest.number)


def candidates(
    manifests: Iterable[CheckpointManifest], choice: Choice, served: Version | None, may_go_back: bool
) -> Iterator[CheckpointManifest]:
    """Versions that should take the place of what is served, the best first; none if that is what is wanted.

    may_go_back: a person has changed what is wanted since.
    """
    if choice.pinned is not None:
        if served is None or served.checkpoint != choice.pinned:
            yield from (manifest for manifest in manifests if manifest.number == choice.pinned)
        return
    for manifest in sorted(manifests, key=version_of, reverse=True):
        is_wanted = choice.allows(manifest)
        if served is not None and manifest.number == served.checkpoint and is_wanted:
            return
        if served is not None and not may_go_back and version_of(manifest) <= served:
            return
        if is_wanted:
            yield manifest


def why_held(manifests: Iterable[CheckpointManifest], choice: Choice, served: Version) -> str:
    """Why the newest version is not served although it is newer than what is; empty: there is none, or a pin is why."""
    newer = [manifest for manifest in manifests if version_of(manifest) > served and not choice.allows(manifest)]
    if choice.pinned is not None or not newer:
        return ""
    newest = max(newer, key=version_of)
    found = "1 newer version is" if len(newer) == 1 else f"{len(newer)} newer are"
    return (
        f"{found} held back; the newest, checkpoint {newest.number} after step "
        f"{newest.step}: {'; '.join(newest.verdict.reasons)}; expected a good one; wait for the next, or release this"
    )

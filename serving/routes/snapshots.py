"""Snapshots: which one is served, which ones there are, and which one operators want.

What operators want is a small file beside the checkpoints. So it can be changed while training is down, is the same for
all servers of a run, and survives restarts.
"""

import asyncio
from collections.abc import Callable
from time import time
from typing import Annotated

import structlog
from fastapi import APIRouter, Path

from infra.base.errors import StorageError
from infra.web.answers import Listed
from infra.web.errors import Conflict, NotAvailable, NotFound
from infra.web.rules import Acting, needs
from ps.checkpoints.choice import Choice
from ps.checkpoints.manifest import CheckpointManifest
from ps.errors import CheckpointDamaged
from serving.follow import Followed
from serving.models import CurrentSnapshot, PinRequest, ReasonRequest, SnapshotIdReading, SnapshotReading
from serving.parts import Parts, ServingParts
from serving.snapshot_id import SnapshotId, snapshot_id_of, why_held
from serving.snapshots.choosing import (
    NoOlderSnapshot,
    NoSuchCheckpoint,
    NothingToChange,
    choose_before,
    choose_newest,
    choose_pin,
    choose_release,
    snapshot_before,
)

SETTLE_SECONDS = 5.0
"""How long a request waits until the wanted snapshot is served."""
CheckpointNumber = Annotated[int, Path(ge=1, lt=1 << 53, description="number of a checkpoint", examples=[7])]
router = APIRouter(tags=["snapshots"])


@router.get("/v1/snapshots/current", summary="What is served", **needs("read"))
async def current(parts: Parts) -> CurrentSnapshot:
    """What the answering process serves; others on the same port follow shortly."""
    return _current(parts, parts.follower.state)


@router.get("/v1/snapshots", summary="Snapshots that there are", **needs("read"))
async def snapshots(parts: Parts) -> Listed[SnapshotReading]:
    """Newest first, with the reasons to hold each one back."""
    state = parts.follower.state
    served = parts.copies.served
    return Listed(items=[_reading(each, state.choice, served) for each in reversed(state.manifests)], next=None)


@router.put("/v1/snapshots/pin", summary="Serve one snapshot until it is unpinned", **needs("control"))
async def pin(parts: Parts, actor: Acting, wanted: PinRequest) -> CurrentSnapshot:
    """It is served whatever its verdict; its checkpoint is kept meanwhile."""
    await _choose(parts, lambda: choose_pin(parts.storage, wanted.checkpoint, actor.name, wanted.reason))
    return await _settled(parts)


@router.delete("/v1/snapshots/pin", summary="Serve the newest good snapshot again", **needs("control"))
async def unpin(parts: Parts, actor: Acting) -> CurrentSnapshot:
    """Refused if no snapshot is pinned."""
    await _choose(parts, lambda: choose_newest(parts.storage, actor.name, ""))
    return await _settled(parts)


@router.post("/v1/snapshots/rollback", summary="Go back to the snapshot before", **needs("control"))
async def rollback(parts: Parts, actor: Acting, wanted: ReasonRequest) -> CurrentSnapshot:
    """Pins the newest snapshot that may be served and is older than what is served, or pinned, now."""
    served = parts.copies.served
    manifests = parts.follower.state.manifests
    at = None if served is None else snapshot_id_of(served)
    await _choose(parts, lambda: choose_before(parts.storage, manifests, at, actor.name, wanted.reason))
    return await _settled(parts)


@router.post(
    "/v1/snapshots/{checkpoint}/release", summary="Let a snapshot go out that is held back", **needs("control")
)
async def release(parts: Parts, actor: Acting, checkpoint: CheckpointNumber, wanted: ReasonRequest) -> CurrentSnapshot:
    """It is served if it is the newest one that may be; refused if it is not held back."""
    await _choose(parts, lambda: choose_release(parts.storage, checkpoint, actor.name, wanted.reason))
    return await _settled(parts)


# ── shared by routes ──────────────────────────────────────────────────────────────────────────────────────────────────
async def _choose(parts: ServingParts, choose: Callable[[], Choice]) -> None:
    """Records what is wanted from now on."""
    async with parts.choosing:
        try:
            await asyncio.to_thread(choose)
        except NoSuchCheckpoint as error:
            raise NotFound(str(error)) from error
        except (NoOlderSnapshot, NothingToChange) as error:
            raise Conflict(str(error)) from error
        except (CheckpointDamaged, StorageError) as error:
            raise NotAvailable(f"what is wanted cannot be written down: {error}") from error


async def _settled(parts: ServingParts) -> CurrentSnapshot:
    state = await asyncio.to_thread(parts.follower.wait_turn, SETTLE_SECONDS)
    structlog.get_logger().info("wanted", pinned=state.choice.pinned, by=state.choice.actor, reason=state.choice.reason)
    return _current(parts, state)


def _current(parts: ServingParts, state: Followed) -> CurrentSnapshot:
    served = parts.copies.served
    if served is None:
        raise NotAvailable(f"nothing is served yet: {state.failure or 'there is no checkpoint'}; try again later")
    previous = snapshot_before(state.manifests, state.choice, snapshot_id_of(served))
    return CurrentSnapshot(
        snapshot=_reading(served, state.choice, served),
        previous=None if previous is None else _id_reading(snapshot_id_of(previous)),
        failure=state.failure or why_held(state.manifests, state.choice, snapshot_id_of(served)),
        bytes=parts.copies.nbytes,
    )


def _reading(manifest: CheckpointManifest, choice: Choice, served: CheckpointManifest | None) -> SnapshotReading:
    snapshot = _id_reading(snapshot_id_of(manifest))
    return SnapshotReading(
        id=snapshot,
        at_seconds=manifest.at_seconds,
        age_seconds=max(0.0, time() - manifest.at_seconds),
        rows=manifest.rows,
        reasons=list(manifest.verdict.reasons),
        is_released=manifest.number in choice.released,
        is_pinned=manifest.number == choice.pinned,
        is_served=served is not None and manifest.number == served.number,
        version=snapshot,
    )


def _id_reading(snapshot: SnapshotId) -> SnapshotIdReading:
    return SnapshotIdReading(**snapshot._asdict())

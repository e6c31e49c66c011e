"""Records what this server serves, beside the checkpoints, so that going back after a restart is noticed."""

from time import monotonic, time

import structlog

from infra.base.errors import StorageError
from infra.base.storage import Storage
from ps.checkpoints.choice import Choice
from ps.checkpoints.manifest import CheckpointManifest
from ps.checkpoints.served import ServedRecord, read_served, remove_unfinished, write_served
from serving.snapshot_id import SnapshotId, snapshot_id_of

PAUSE_SECONDS = 5.0
"""Least time between two records; the newest good checkpoints are kept anyway, so nothing is lost meanwhile."""
AGAIN_SECONDS = 3600.0
"""Time after which an unchanged record is written again, so that the server does not count as gone."""


class Remembered:
    """The record of one server."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage = storage
        self._name = name
        self._before: ServedRecord | None = None
        """What was served last before this process started; None: nothing, or a pinned snapshot."""
        self._is_read = False
        self._written: tuple[SnapshotId, bool] | None = None
        self._written_at = -AGAIN_SECONDS
        """Time of the last record (monotonic clock)."""
        self._is_refused = False

    def read(self) -> None:
        """Reads what was served last; once, before anything is served."""
        if self._is_read:
            return
        self._is_read = True
        try:
            found = read_served(self._storage, self._name)
            self._before = None if found is None or found.is_pinned else found
            remove_unfinished(self._storage, self._name)
        except StorageError as error:
            structlog.get_logger().warning("what was served last cannot be read", reason=str(error))

    def setback(self, served: CheckpointManifest | None, choice: Choice) -> str:
        """Why an older snapshot is served than before the restart; empty: it is not older, or an operator wants it."""
        before = self._before
        if before is None or served is None:
            return ""
        if choice.pinned is not None or (served.timeline, served.step) >= (before.timeline, before.step):
            self._before = None
            return ""
        return (
            f"checkpoint {served.number} after step {served.step} is served, and checkpoint {before.checkpoint} "
            f"after step {before.step} "
            "was before this server was started; expected that or a newer one; restore its files, or wait for one"
        )

    def keep(self, served: CheckpointManifest | None, choice: Choice) -> None:
        """Records what is served, at most every few seconds, and not while that is older than before the restart.

        If the storage refuses, a warning is logged once.
        """
        if served is None or self._before is not None:
            return
        now = monotonic()
        present = (snapshot_id_of(served), choice.pinned is not None)
        if now - self._written_at < (AGAIN_SECONDS if present == self._written else PAUSE_SECONDS):
            return
        self._written_at = now
        (timeline, step, checkpoint), is_pinned = present
        try:
            write_served(self._storage, self._name, ServedRecord(checkpoint, timeline, step, is_pinned, time()))
        except StorageError as error:
            if not self._is_refused:
                hint = "what is served is not on record; it is kept only while it is one of the newest good checkpoints"
                structlog.get_logger().warning(hint, reason=str(error))
            self._is_refused = True
            return
        self._written = present
        self._is_refused = False

"""Follows the checkpoints of a run, in a thread: loads the wanted snapshot into the standby and swaps it in.

Every turn:

1. read the choice of operators (the choice file), and new manifests
2. load the best of the snapshots that should be served and can be loaded
3. swap the copies, and report what is served

A damaged checkpoint is skipped and tried again after some seconds; the present snapshot stays until a better one has
been loaded completely. What is served is recorded beside the checkpoints (``serving/snapshots/remembered.py``): a
server that starts with an older snapshot than it served last reports that until it has caught up.
"""

import threading
import time
from typing import NamedTuple, Protocol

import structlog

from infra.base.errors import FreshetError
from infra.base.storage import Storage
from infra.base.telemetry import DoublingPauses, Meter
from ps.checkpoints.choice import Choice, read_choice
from ps.checkpoints.manifest import CheckpointManifest, manifest_numbers
from ps.checkpoints.publication import DeliveredFiles, Deliveries
from ps.errors import CheckpointDamaged
from serving.copies import Copies
from serving.loading import is_at, load, read_served_manifest
from serving.snapshot_id import SnapshotId, candidates, snapshot_id_of
from serving.snapshots.remembered import Remembered

LOCAL_SECONDS = 0.1
"""Time between two checks of a local folder."""
REMOTE_SECONDS = 1.0
"""Time between two checks of an object store."""
RETRY_SECONDS = 5.0
"""Time after which a checkpoint that could not be loaded is tried again."""


class News(Protocol):
    """Where notifications of new checkpoints come from, and where the served snapshot is reported."""

    def wait(self, seconds: float) -> tuple[str, ...]:
        """Waits for a new checkpoint, up to that many seconds; returns the endpoints where shards publish files."""

    def served(self, snapshot: SnapshotId, at_seconds: float) -> None:
        """Reports that a snapshot is served from now on; ``at_seconds`` is since 1970."""

    def wake(self) -> None:
        """Ends the present wait, or the next one."""

    def close(self) -> None:
        """Called once nobody waits any more."""


class PolledNews:
    """No notifications: the storage is polled."""

    def __init__(self) -> None:
        self._woken = threading.Event()

    def wait(self, seconds: float) -> tuple[str, ...]:
        self._woken.wait(seconds)
        self._woken.clear()
        return ()

    def served(self, snapshot: SnapshotId, at_seconds: float) -> None:
        """There is nobody to report to."""

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        """Nothing to close."""


class Followed(NamedTuple):
    """The result of the last turn."""

    turn: int
    choice: Choice
    manifests: tuple[CheckpointManifest, ...]
    """Manifests of all checkpoints that can be read, ascending."""
    failure: str
    """The reason why a snapshot that should be served is not; empty: it is served."""


class Follower:
    """Keeps the copies at the snapshot that should be served."""

    def __init__(
        self,
        storage: Storage,
        copies: Copies,
        news: News,
        meter: Meter,
        deliveries: Deliveries | None = None,
        name: str = "serve",
    ) -> None:
        """``deliveries`` are files that shards have published; None: all files are read from storage.

        ``name`` is that of the server.
        """
        self._storage = storage
        self._copies = copies
        self._news = news
        self._meter = meter
        self._remembered = Remembered(storage, name)
        self._deliveries = deliveries
        self._delivered = None if deliveries is None else DeliveredFiles(storage, deliveries)
        self._manifests: dict[int, CheckpointManifest] = {}
        self._retry_at: dict[int, float] = {}
        """Times at which checkpoints that could not be loaded may be tried again (monotonic clock), by number."""
        self._pinned: int | None = None
        """The pinned checkpoint when the present snapshot was swapped in."""
        self._pauses = DoublingPauses()
        self._turned = threading.Condition()
        self.state = Followed(0, Choice(), (), "no turn has been taken yet")
        self._begun = 0
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="follow", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._is_closing = True
        self._news.wake()
        self._thread.join()
        self._news.close()

    def wait_turn(self, seconds: float) -> Followed:
        """Waits for a turn that begins after this call, up to that many seconds; returns the newest result."""
        with self._turned:
            under_way = self._begun
            self._news.wake()
            self._turned.wait_for(lambda: self.state.turn > under_way, seconds)
            return self.state

    def turn(self) -> None:
        """Checks once, and serves the snapshot that should be served."""
        with self._turned:
            self._begun = self.state.turn + 1
        choice = self.state.choice
        failure = ""
        try:
            choice = read_choice(self._storage)
            self._remembered.read()
            self._read_new_manifests()
            failure = self._serve_best(choice) or self._remembered.setback(self._copies.served, choice)
            self._remembered.keep(self._copies.served, choice)
        except FreshetError as error:
            failure = str(error)
        if failure and failure != self.state.failure:
            structlog.get_logger().warning("not served", reason=failure)
        with self._turned:
            manifests = tuple(self._manifests[number] for number in sorted(self._manifests))
            self.state = Followed(self.state.turn + 1, choice, manifests, failure)
            self._turned.notify_all()

    def _run(self) -> None:
        pause = LOCAL_SECONDS if self._storage.is_local else REMOTE_SECONDS
        while not self._is_closing:
            try:
                self.turn()
                self._measure()
            except Exception:  # the edge of the thread: it must not end while the process serves
                structlog.get_logger().exception("following failed; it goes on")
            publishers = self._news.wait(pause)
            if self._deliveries is not None:
                self._deliveries.subscribe(publishers)

    def _read_new_manifests(self) -> None:
        """Reads new manifests; those that cannot be read are skipped for a while."""
        numbers = manifest_numbers(self._storage)
        self._manifests = {number: known for number, known in self._manifests.items() if number in set(numbers)}
        for number in numbers:
            if number not in self._manifests and self._may_try(number):
                try:
                    self._manifests[number] = read_served_manifest(self._storage, number)
                except CheckpointDamaged as error:
                    self._give_up(number, error)

    def _serve_best(self, choice: Choice) -> str:
        """Swaps in the best snapshot that can be loaded; returns the reason why a better one could not be loaded."""
        failure = ""
        served = self._copies.served
        present = None if served is None else snapshot_id_of(served)
        if choice.pinned is not None and choice.pinned not in self._manifests:
            return (
                f"checkpoint {choice.pinned} is pinned and cannot be read; expected its manifest; pin another, or "
                "unpin it"
            )
        for wanted in candidates(self._manifests.values(), choice, present, choice.pinned != self._pinned):
            if not is_at(self._copies.standby, wanted):
                if not self._may_try(wanted.number):
                    failure = failure or self.state.failure
                    continue
                try:
                    self._load(wanted)
                except CheckpointDamaged as error:
                    self._give_up(wanted.number, error)
                    failure = failure or str(error)
                    continue
            self._swap(wanted, choice)
            self._pinned = choice.pinned
            break
        # Without a failure the choice is carried out, even if nothing had to be swapped.
        if not failure:
            self._pinned = choice.pinned
        return failure

    def _load(self, wanted: CheckpointManifest) -> None:
        began = time.perf_counter()
        done = load(self._collected(wanted), wanted, self._copies.standby)
        self._meter.observe("serving_load", time.perf_counter() - began)
        structlog.get_logger().debug(
            "loaded", checkpoint=wanted.number, files=len(done.files), is_whole=done.since is None
        )

    def _collected(self, wanted: CheckpointManifest) -> Storage:
        """The storage, together with those files of a checkpoint that have already been delivered."""
        if self._delivered is None:
            return self._storage
        delivered = self._delivered.collect(file for shard in wanted.shards for file in shard.files)
        self._meter.count("serving_delivered_files", delivered)
        return self._delivered

    def _swap(self, wanted: CheckpointManifest, choice: Choice) -> None:
        before = self._copies.served
        self._copies.swap()
        now = time.time()
        self._log_served(wanted, before, choice)
        self._meter.count("serving_swaps")
        self._news.served(snapshot_id_of(wanted), now)

    def _log_served(self, wanted: CheckpointManifest, before: CheckpointManifest | None, choice: Choice) -> None:
        """Logs at once if the reason for serving has changed, or after a failure; otherwise at growing intervals."""
        is_older = before is not None and snapshot_id_of(wanted) < snapshot_id_of(before)
        is_released = wanted.number in choice.released
        is_mended = before is not None and self.state.failure != ""
        kind = choice.pinned, is_released, wanted.timeline, is_older, is_mended
        if snapshots := self._pauses.count_if_due(kind):
            at = {
                "checkpoint": wanted.number,
                "timeline": wanted.timeline,
                "step": wanted.step,
                "pinned": choice.pinned,
            }
            structlog.get_logger().info("serves", **at, is_released=is_released, is_older=is_older, snapshots=snapshots)

    def _may_try(self, number: int) -> bool:
        return self._retry_at.get(number, 0.0) <= time.monotonic()

    def _give_up(self, number: int, error: CheckpointDamaged) -> None:
        """Skips a checkpoint for a while."""
        if times := self._pauses.count_if_due((number, str(error))):
            structlog.get_logger().warning("checkpoint is left out", checkpoint=number, reason=str(error), times=times)
        self._meter.count("serving_damaged_checkpoints")
        self._retry_at[number] = time.monotonic() + RETRY_SECONDS

    def _measure(self) -> None:
        served = self._copies.served
        if served is not None:
            self._meter.gauge("serving_step", served.step)
            self._meter.gauge("serving_age_seconds", max(0.0, time.time() - served.at_seconds))
            self._meter.gauge("serving_rows", self._copies.rows)
            self._meter.gauge("serving_bytes", self._copies.nbytes)

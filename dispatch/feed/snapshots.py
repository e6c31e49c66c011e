"""Snapshots in the dispatcher's loop: announced with their checkpoints, and tracked until they are served."""

from typing import Any

from dispatch.checkpoints.reference import PendingScores
from dispatch.checkpoints.schedule import Checkpointing
from dispatch.feed.audience import Audience
from dispatch.feed.protocol import Live
from dispatch.intake import Intake
from dispatch.journal.run import RunJournal
from dispatch.peers.connections import ShardConnections
from dispatch.progress.newest import TrainedSamples
from dispatch.progress.status import ServedStatus
from ps.checkpoints.manifest import CheckpointManifest


class PublishedSnapshots:
    """The work of the loop for servers of the model."""

    def __init__(self, audience: Audience, checkpointing: Checkpointing, journal: RunJournal, intake: Intake) -> None:
        self._audience = audience
        self._checkpointing = checkpointing
        self._journal = journal
        self._intake = intake
        self._held: tuple[str, ...] = ()
        """Reasons why the newest snapshot is held back; empty if it is not."""
        self._live: Live | None = None
        """The last report of a server that has a snapshot."""

    def start_generation(self, connections: ShardConnections) -> None:
        """Updates the addresses of the shards, which may have been replaced."""
        self._audience.publish_at(connections.publishers)

    def advance(self, connections: ShardConnections, generation: int) -> None:
        """Processes the reports of servers, and the progress of the checkpoint that is being taken."""
        for live in self._audience.take_reports():
            self._hear(live)
        self._checkpointing.has_audience = self._audience.servers > 0
        if not connections.are_open:
            return
        if (checkpoint := self._checkpointing.advance(connections.shards, generation)) is not None:
            self._announce(checkpoint)

    def ask(self, newest: TrainedSamples | None) -> PendingScores | None:
        """Has the newest samples scored by the served snapshot; returns None if no server can."""
        if newest is None or (answer := self._audience.questions.ask(newest.samples)) is None:
            return None
        return PendingScores(newest, answer)

    def go_back(self) -> None:
        """Announces the checkpoint that the run has gone back to: a server may not have heard of it yet."""
        if self._checkpointing.newest is not None:
            self._announce(self._checkpointing.newest)

    def withdraw(self) -> None:
        """Withdraws the snapshots of steps that have been voided."""
        self._held = ()
        self._audience.withdraw(self._journal.timeline)

    def status(self) -> ServedStatus:
        newest = self._audience.newest.checkpoint or None
        live = self._live
        known: dict[str, Any] = {"servers": self._audience.servers, "newest_checkpoint": newest, "held": self._held}
        if live is None:
            return ServedStatus(**known)
        freshness = self._intake.freshness.status()
        return ServedStatus(
            **known, checkpoint=live.checkpoint, timeline=live.timeline, step=live.step, freshness=freshness
        )

    def _announce(self, checkpoint: CheckpointManifest) -> None:
        self._held = checkpoint.verdict.reasons
        self._audience.announce(checkpoint.number, checkpoint.timeline, checkpoint.step)

    def _hear(self, live: Live) -> None:
        if not live.checkpoint:
            return
        self._live = live
        if live.timeline == self._journal.timeline and live.step <= self._intake.step:
            self._intake.freshness.live(live.step, live.at_seconds)

"""What is logged about checkpoints: while the model is served there is a snapshot per second, but not a line for each.

- A checkpoint that a recovery may go back to is logged when it is taken.
- Snapshots that merely follow each other are counted, and logged at intervals that double.
- A snapshot that is held back is logged at once if the reason is new, otherwise at intervals that double.
- The first good snapshot after that is logged at once.
"""

import re
from collections.abc import Callable
from time import monotonic

import structlog

from infra.base.telemetry import DoublingPauses
from ps.checkpoints.manifest import CheckpointManifest

NUMBER = re.compile(r"(?<![\w.])\d[\d.,]*")
"""A number in a reason; the digits of a field's name belong to the name."""


def kind_of(reasons: tuple[str, ...]) -> tuple[str, ...]:
    """The reasons without their figures, which differ from snapshot to snapshot."""
    return tuple(NUMBER.sub("#", reason) for reason in reasons)


class CheckpointLog:
    """Logs the checkpoints of one run."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._pauses = DoublingPauses(clock)
        self._held = 0
        """Snapshots held back in a row."""
        self._log = structlog.get_logger()

    def log_taken(self, checkpoint: CheckpointManifest, is_served: bool) -> None:
        """Logs a new checkpoint; is_served: whether somebody serves the model, so that it matters
        if it is held back.
        """
        at = {
            "checkpoint": checkpoint.number,
            "step": checkpoint.step,
            "rows": checkpoint.rows,
            "timeline": checkpoint.timeline,
        }
        if not checkpoint.is_publication:
            self._log.info("checkpoint taken", **at)
        if is_served and not checkpoint.verdict.is_good:
            self._held += 1
            if self._pauses.count_if_due(("held", *kind_of(checkpoint.verdict.reasons))):
                self._log.warning("snapshot held back", **at, reasons=checkpoint.verdict.reasons, in_a_row=self._held)
            return
        held, self._held = self._held, 0
        if held and self._pauses.count_if_due("good again"):
            self._log.info("snapshots are good again", **at, held_back=held)
        elif (
            not held
            and checkpoint.is_publication
            and (snapshots := self._pauses.count_if_due(("taken", checkpoint.timeline)))
        ):
            self._log.info("snapshots taken", **at, snapshots=snapshots)

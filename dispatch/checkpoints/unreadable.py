"""Checkpoints that the storage did not return: each is tried a few times, then skipped for a while, and tried again
later.

An error of the storage says nothing about the checkpoint: a disk or a network may be back in a moment, a permission may
be corrected. A damaged checkpoint is a different case (``CheckpointSearch.damaged``).
"""

from time import monotonic

MOST_TRIES = 5
"""Failed attempts, by the dispatcher or by a shard, before an older checkpoint is used."""
LATER_SECONDS = 60.0
"""How long such a checkpoint is skipped."""


class UnreadableCheckpoints:
    """Which checkpoints could not be read, how often, and why."""

    def __init__(self) -> None:
        self._tries: dict[int, int] = {}
        self._until: dict[int, float] = {}
        """When skipped ones may be tried again, on the monotonic clock."""
        self.reasons: dict[int, str] = {}
        """Why skipped ones could not be read the last time."""

    def note(self, number: int, reason: str) -> bool:
        """Notes that a checkpoint could not be read; returns whether it is skipped from now on."""
        self._tries[number] = self._tries.get(number, 0) + 1
        if self._tries[number] < MOST_TRIES:
            return False
        del self._tries[number]
        self._until[number], self.reasons[number] = monotonic() + LATER_SECONDS, reason
        return True

    def left_out(self) -> set[int]:
        """Checkpoints that are not to be tried now."""
        now = monotonic()
        for number in [number for number, until in self._until.items() if until <= now]:
            del self._until[number], self.reasons[number]
        return set(self._until)

    def forget(self) -> None:
        """Lets all be tried at once."""
        self._tries.clear()
        self._until.clear()
        self.reasons.clear()

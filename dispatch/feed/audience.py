"""The servers of the model: whether there are any, what they serve, and what is announced to them.

Two threads meet here: the socket's thread (``dispatch/feed/server.py``), which hears from servers and answers them, and
the dispatcher's loop, which takes checkpoints and announces the newest. Each value is replaced as a whole.

Announcements never go back in (timeline, step). When recovery discards steps, their snapshots are withdrawn, and
nothing is announced before the first later checkpoint. A dispatcher that starts announces the checkpoint that it goes
back to, unless an earlier dispatcher may have announced a newer one that is now damaged or void.
"""

from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import NamedTuple

from dispatch.feed.protocol import Live
from dispatch.feed.questions import Questions

LIVE_SECONDS = 10.0
"""Time after its last message for which a server counts as serving."""
MOST_HEARD = 1024
"""Most messages that wait for the loop."""
MOST_SERVERS = 4096
"""Most servers that are remembered by name."""


class Announced(NamedTuple):
    """The newest snapshot that exists."""

    checkpoint: int = 0
    """Number of its checkpoint; 0 if there is none, or none since steps were voided. The storage has the earlier ones.
    """
    timeline: int = 0
    step: int = -1


class Audience:
    """The servers of one run."""

    def __init__(self) -> None:
        self.newest = Announced()
        self.publishers: tuple[str, ...] = ()
        """Addresses at which the shards publish their files, by shard number."""
        self.questions = Questions()
        """Questions to servers."""
        self._heard: deque[Live] = deque(maxlen=MOST_HEARD)
        self._seen: dict[str, float] = {}
        """When each server was last heard from, by the monotonic clock."""

    # ── on the socket's thread ────────────────────────────────────────────────────────────────────────────────────────
    def hear(self, live: Live) -> None:
        """Notes a server's report of what it serves."""
        self._heard.append(live)
        self.questions.hear(live)

    def has_news(self, live: Live) -> bool:
        """Whether there is a snapshot that the server does not know."""
        return self.newest.checkpoint > live.known

    # ── in the loop ───────────────────────────────────────────────────────────────────────────────────────────────────
    def take_reports(self) -> list[Live]:
        """Returns what servers have reported since the last call."""
        taken = [self._heard.popleft() for _ in range(len(self._heard))]
        now = monotonic()
        for live in taken:
            if live.name in self._seen or len(self._seen) < MOST_SERVERS:
                self._seen[live.name] = now
        if any(now - seen > LIVE_SECONDS for seen in self._seen.values()):
            self._seen = {name: seen for name, seen in self._seen.items() if now - seen <= LIVE_SECONDS}
        return taken

    @property
    def servers(self) -> int:
        """Number of servers heard from in the last seconds."""
        return len(self._seen)

    def announce(self, checkpoint: int, timeline: int, step: int) -> None:
        """Announces a checkpoint to servers, unless it is older than the one announced before."""
        if (timeline, step) >= (self.newest.timeline, self.newest.step):
            self.newest = Announced(checkpoint, timeline, step)

    def withdraw(self, timeline: int) -> None:
        """Withdraws the snapshots of void steps; the next snapshot belongs to this timeline."""
        self.newest = Announced(0, timeline, -1)

    def publish_at(self, endpoints: Sequence[str]) -> None:
        """Sets where the shards of the current generation publish."""
        self.publishers = tuple(endpoints)

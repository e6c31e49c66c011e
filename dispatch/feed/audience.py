"""Those who serve the model: whether there are any, what they serve, and what they are told of new snapshots.

Two threads meet here: that of the socket (``dispatch/feed/server.py``), which hears who serves and answers,
and the dispatcher's loop, which takes checkpoints and says which is the newest. Each value is replaced whole.

What is announced never goes back in (timeline, step). When recovery discards steps, their snapshots are withdrawn,
and nothing is announced before the first later checkpoint. A dispatcher that starts announces the checkpoint that it
goes back to, unless an earlier one may have announced a newer one, which is damaged or void now.
"""

from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import NamedTuple

from dispatch.feed.protocol import Live
from dispatch.feed.questions import Questions

LIVE_SECONDS = 10.0
"""after its last message, that a server counts as serving"""
MOST_HEARD = 1024
"""messages that wait for the loop"""
MOST_SERVERS = 4096
"""that are remembered by name"""


class Announced(NamedTuple):
    """The newest snapshot there is."""

    checkpoint: int = 0
    """0: none, or none since steps were declared void; the storage knows those before"""
    timeline: int = 0
    step: int = -1


class Audience:
    """The servers of one run."""

    def __init__(self) -> None:
        self.newest = Announced()
        self.publishers: tuple[str, ...] = ()
        """where the shards publish their files, by number"""
        self.questions = Questions()
        """to servers"""
        self._heard: deque[Live] = deque(maxlen=MOST_HEARD)
        self._seen: dict[str, float] = {}
        """when each server was last heard, by the monotonic clock"""

    # ── on the socket's thread ────────────────────────────────────────────────────────────────────────────────────────
    def hear(self, live: Live) -> None:
        """A server says what it serves."""
        self._heard.append(live)
        self.questions.hear(live)

    def has_news(self, live: Live) -> bool:
        """Whether there is a snapshot that the server did not know."""
        return self.newest.checkpoint > live.known

    # ── in the loop ───────────────────────────────────────────────────────────────────────────────────────────────────
    def take_reports(self) -> list[Live]:
        """What servers have said since the last call."""
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
        """Those heard in the last seconds."""
        return len(self._seen)

    def announce(self, checkpoint: int, timeline: int, step: int) -> None:
        """A checkpoint exists; servers that wait hear of it, unless it is older than what they have heard of."""
        if (timeline, step) >= (self.newest.timeline, self.newest.step):
            self.newest = Announced(checkpoint, timeline, step)

    def withdraw(self, timeline: int) -> None:
        """Steps are void, and snapshots made of them are no more; the next one is of this line."""
        self.newest = Announced(0, timeline, -1)

    def publish_at(self, endpoints: Sequence[str]) -> None:
        """The shards of the current generation publish here."""
        self.publishers = tuple(endpoints)

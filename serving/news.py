"""Notifications between a server and the dispatcher of its run: new snapshots one way, the served snapshot the other.

One thread polls the dispatcher. Each request reports what is served, and is answered when there is a newer snapshot, or
after a second. A new snapshot wakes the follower's thread. The dispatcher may ask how the served snapshot scores its
newest samples, and judges the next snapshot by the answer. Nothing depends on any of this: without a dispatcher the
storage is polled.
"""

import threading
from collections.abc import Callable
from contextlib import closing

from dispatch.feed.live_client import LiveClient, Scorer
from dispatch.feed.protocol import Newest
from infra.base.wire import Curve
from serving.snapshot_id import SnapshotId

AGAIN_SECONDS = 1.0
"""Pause before a dispatcher that did not answer is called again."""
NOWHERE = "tcp://127.0.0.1:1"
"""Placeholder endpoint, until the dispatcher's is known."""
NOTHING = SnapshotId(0, -1, 0)
"""What a server without a snapshot reports."""


class DispatcherNews:
    """Notifications from the dispatcher; implements serving.follow.News."""

    def __init__(
        self,
        endpoint: Callable[[], str | None],
        run: str,
        curve: Curve | None,
        name: str,
        score: Scorer | None = None,
    ) -> None:
        """``endpoint`` returns the dispatcher's present endpoint, or None; ``score`` answers its questions."""
        self._endpoint = endpoint
        self._run = run
        self._curve = curve
        self._name = name
        self._score = score
        self._served = NOTHING, 0.0
        self._newest: Newest | None = None
        self._has_news = threading.Event()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._report_until_closed, name="news", daemon=True)
        self._thread.start()

    # ── on the follower's thread ──────────────────────────────────────────────────────────────────────────────────────
    def wait(self, seconds: float) -> tuple[str, ...]:
        self._has_news.wait(seconds)
        self._has_news.clear()
        return () if self._newest is None else self._newest.publishers

    def served(self, snapshot: SnapshotId, at_seconds: float) -> None:
        self._served = snapshot, at_seconds

    def wake(self) -> None:
        self._has_news.set()

    def close(self) -> None:
        self._is_closed.set()
        self._thread.join()

    # ── on its own thread
    # ─────────────────────────────────────────────────────────────────────────────────────────────────
    def _report_until_closed(self) -> None:
        with closing(LiveClient(NOWHERE, self._run, self._curve, self._name, self._score)) as client:
            while not self._is_closed.is_set():
                if (endpoint := self._endpoint()) is not None:
                    client.move(endpoint)
                if endpoint is None or not self._report(client):
                    self._is_closed.wait(AGAIN_SECONDS)

    def _report(self, client: LiveClient) -> bool:
        """Reports what is served; returns whether the dispatcher answered."""
        (snapshot, at_seconds), known = self._served, 0 if self._newest is None else self._newest.checkpoint
        newest = client.report(client.live(snapshot.timeline, snapshot.step, snapshot.checkpoint, at_seconds, known))
        if newest is None:
            return False
        if newest.checkpoint != known:
            self._newest = newest
            self._has_news.set()
        elif self._newest is None or newest.publishers != self._newest.publishers:
            self._newest = newest
        return True

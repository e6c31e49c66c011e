"""How long a worker's link is in use in one step, as far as the worker can know it.

A pull's seconds are no measure of a link: the shard answers only when everybody's pushes are in. So the answer says how
long it was held back, and the rest of the time belongs to the link: what was pushed to that shard just before (it is on
the same connection, ahead of the question), the question, the rows. Answers of several shards travel at once; time in
which any of them was on its way counts once.
"""

from time import perf_counter


class LinkTimer:
    """Bytes and seconds of the transfers of one step."""

    def __init__(self) -> None:
        self._pushed: dict[int, tuple[int, float]] = {}
        self._asked: dict[int, tuple[int, float]] = {}
        self._nbytes = 0
        self._blocked_seconds = 0.0
        self._travelled: list[tuple[float, float]] = []

    def pushed(self, shard: int, nbytes: int, began: float) -> None:
        """Notes a push: a shaped link has carried its bytes by now, another one begins to."""
        self._pushed[shard] = (nbytes, perf_counter() - began)

    def asked(self, shard: int, nbytes: int) -> None:
        """Notes a pull request."""
        self._asked[shard] = (nbytes, perf_counter())

    def answered(self, shard: int, nbytes: int, held_seconds: float) -> None:
        """Notes that a shard's rows have arrived, which it had held back for so many seconds."""
        now = perf_counter()
        pushed_bytes, blocked_seconds = self._pushed.pop(shard, (0, 0.0))
        asked_bytes, asked_at = self._asked.pop(shard)
        self._nbytes += pushed_bytes + asked_bytes + nbytes
        self._blocked_seconds += blocked_seconds
        self._travelled.append((min(now, asked_at + max(0.0, held_seconds)), now))

    def take(self) -> tuple[int, float]:
        """Bytes and seconds of the transfers that were answered; starts anew."""
        nbytes, seconds = self._nbytes, self._blocked_seconds + covered(self._travelled)
        self._nbytes, self._blocked_seconds = 0, 0.0
        for kept in (self._pushed, self._asked, self._travelled):
            kept.clear()
        return nbytes, seconds


def covered(intervals: list[tuple[float, float]]) -> float:
    """Seconds that lie in at least one of the intervals."""
    total, until = 0.0, float("-inf")
    for began, ended in sorted(intervals):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total

"""Measures the speed of a worker's link, each direction for itself, as far as one step allows.

The duration of a pull does not measure the link, because the shard answers only when everybody's pushes have arrived,
and because a request waits behind whatever its sender still sends. So a small message goes directly ahead of a large
one over the same connection, and what passes between their arrivals is the large one's time: only the link is between
them.

- **Down**: a shard sends Coming ahead of a large answer, and ahead of the first pieces of dense weights. Answers of
  several shards travel at once; time in which any of them was on its way counts once. If nobody waited when Coming
  arrived, its answer is not timed.
- **Up**: a Pull goes ahead of the rows that its sender pushes in the same phase, and the shard's answer says how much
  later they arrived, less what passed between the two at the sender. Pushes to several shards travel one after the
  other: the longest time counts for all of them. Of the pieces of a dense gradient the shard sees how much later each
  one arrives than the one before.
"""

from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

Asked = tuple[int, int]
"""(phase, shard) of a pull."""


class LinkTimes(NamedTuple):
    """Bytes of the timed transfers in each direction, and how long they took."""

    down_bytes: int = 0
    down_seconds: float = 0.0
    up_bytes: int = 0
    up_seconds: float = 0.0


@dataclass
class Travelled:
    """What one direction has carried."""

    nbytes: int = 0
    seconds: float = 0.0


class LinkTimer:
    """Bytes and seconds of the transfers of one step."""

    def __init__(self) -> None:
        self._asked: dict[Asked, float] = {}
        """When each pull was last requested."""
        self._coming: dict[Asked, float] = {}
        """When the answers that are on their way were announced."""
        self._down_bytes = 0
        self._travelled: list[tuple[float, float]] = []
        self._passed_bytes = 0
        """Bytes of dense weights that arrived over the same link while an answer was on its way."""
        self._dense = Travelled()
        self._pushed: dict[int, Travelled] = {}
        """Rows that were pushed, by phase."""

    def asked(self, of: Asked) -> None:
        """Notes a pull request."""
        self._asked[of] = perf_counter()

    def since_asked(self, of: Asked) -> float:
        """Seconds since that pull was requested; 0 if it was not."""
        return perf_counter() - self._asked[of] if of in self._asked else 0.0

    def coming(self, of: Asked, was_awaited: bool) -> None:
        """Notes that a shard's rows are on their way from now on."""
        if was_awaited:
            self._coming[of] = perf_counter()

    def answered(self, of: Asked, nbytes: int) -> None:
        """Notes the arrival of a shard's rows."""
        began = self._coming.pop(of, None)
        if began is not None:
            self._down_bytes += nbytes + self._passed_bytes
            self._passed_bytes = 0
            self._travelled.append((began, perf_counter()))

    def passed(self, of: Asked, nbytes: int) -> None:
        """Notes dense weights that have arrived; only the first of them are announced."""
        if of in self._coming:
            self.answered(of, nbytes)
        elif self._coming:
            self._passed_bytes += nbytes

    def gave(self, nbytes: int, seconds: float) -> None:
        """Notes how long a shard saw pieces of a dense gradient arrive."""
        self._dense.nbytes += nbytes
        self._dense.seconds += seconds

    def pushed(self, phase: int, nbytes: int, seconds: float) -> None:
        """Notes how long a shard saw rows arrive that were pushed to it."""
        if nbytes:
            rows = self._pushed.setdefault(phase, Travelled())
            rows.nbytes += nbytes
            rows.seconds = max(rows.seconds, seconds)

    def take_times(self) -> LinkTimes:
        """Bytes and seconds of the timed transfers; resets them."""
        up = [self._dense, *self._pushed.values()]
        measured = LinkTimes(
            down_bytes=self._down_bytes,
            down_seconds=covered(self._travelled),
            up_bytes=sum(each.nbytes for each in up),
            up_seconds=sum(each.seconds for each in up),
        )
        self._down_bytes = 0
        self._passed_bytes = 0
        self._dense = Travelled()
        self._pushed.clear()
        self._travelled.clear()
        return measured


def covered(intervals: list[tuple[float, float]]) -> float:
    """Seconds that are in at least one of the intervals."""
    total = 0.0
    until = float("-inf")
    for began, ended in sorted(intervals):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total

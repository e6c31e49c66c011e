"""How fast a worker's link is, as far as one step can tell.

A pull's seconds are no measure of a link: the shard answers only when everybody's pushes are in. So the answer says how
long it was held back, and the rest of the time belongs to the link: the question, which goes ahead of what is pushed,
and the rows. Answers of several shards travel at once; time in which any of them was on its way counts once. An answer
that was there before anyone waited for it says nothing.

Where pieces of a dense gradient go up while changed pieces come down, all of this is mixed up. But the shard sees how
much later each of them arrives than the one before, and for that the sender's link alone is to blame: this counts, and
nothing else in such a step.
"""

from dataclasses import dataclass
from time import perf_counter

Asked = tuple[int, int]
"""(phase, shard) of a pull"""


@dataclass(frozen=True)
class Question:
    """A pull request on its way."""

    at_seconds: float
    nbytes: int


class LinkTimer:
    """Bytes and seconds of the transfers of one step."""

    def __init__(self) -> None:
        self._asked: dict[Asked, Question] = {}
        self._nbytes = 0
        self._travelled: list[tuple[float, float]] = []
        self._dense_bytes = 0
        self._dense_seconds = 0.0
        self._passed_bytes = 0
        """of dense weights that came while an answer was on its way, on the same link"""

    def asked(self, of: Asked, nbytes: int) -> None:
        """Notes a pull request."""
        self._asked[of] = Question(perf_counter(), nbytes)

    def answered(self, of: Asked, nbytes: int, held_seconds: float, was_awaited: bool) -> None:
        """Notes that a shard's rows are there, which it had held back for so many seconds."""
        now = perf_counter()
        question = self._asked.pop(of)
        passed_bytes, self._passed_bytes = self._passed_bytes, 0
        if was_awaited:
            self._nbytes += question.nbytes + passed_bytes + nbytes
            self._travelled.append((min(now, question.at_seconds + max(0.0, held_seconds)), now))

    def passed(self, nbytes: int) -> None:
        """Notes dense weights that have arrived."""
        self._passed_bytes += nbytes if self._asked else 0

    def gave(self, nbytes: int, seconds: float) -> None:
        """Notes how long a shard saw pieces of a dense gradient arrive."""
        self._dense_bytes += nbytes
        self._dense_seconds += seconds

    def take_times(self) -> tuple[int, float]:
        """Bytes and seconds of the transfers that were timed; starts anew."""
        measured = self._nbytes, covered(self._travelled)
        if self._dense_bytes:
            measured = self._dense_bytes, self._dense_seconds
        self._nbytes = 0
        self._passed_bytes = 0
        self._dense_bytes = 0
        self._dense_seconds = 0.0
        self._travelled.clear()
        return measured


def covered(intervals: list[tuple[float, float]]) -> float:
    """Seconds that lie in at least one of the intervals."""
    total = 0.0
    until = float("-inf")
    for began, ended in sorted(intervals):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total

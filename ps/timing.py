"""Measures the speed of a worker's link, as far as one step allows.

The duration of a pull does not measure the link, because the shard answers only when everybody's pushes have arrived.
The answer therefore says how long it was held back; the remaining time belongs to the link: the request, which is sent
ahead of pushed rows, and the rows. Answers of several shards travel at once; time in which any of them was on its way
counts once. An answer that had arrived before anyone waited for it is not timed.

While pieces of a dense gradient go up and updated pieces come down, these times are mixed. But the shard sees how much
later each piece arrives than the one before, which only the sender's link determines. In such a step only this is used.
"""

from dataclasses import dataclass
from time import perf_counter

Asked = tuple[int, int]
"""(phase, shard) of a pull."""


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
        """Bytes of dense weights that arrived over the same link while an answer was on its way."""

    def asked(self, of: Asked, nbytes: int) -> None:
        """Notes a pull request."""
        self._asked[of] = Question(perf_counter(), nbytes)

    def answered(self, of: Asked, nbytes: int, held_seconds: float, was_awaited: bool) -> None:
        """Notes the arrival of a shard's rows, which it had held back for that many seconds."""
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
        """Bytes and seconds of the timed transfers; resets them."""
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
    """Seconds that are in at least one of the intervals."""
    total = 0.0
    until = float("-inf")
    for began, ended in sorted(intervals):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total

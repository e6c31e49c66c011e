"""The barrier: which round is next, whose pushes it still waits for, and which pulls wait for it.

Workers and the dispatcher use different sockets, so a push or a pull may arrive before the round it belongs to is
announced; it is held. Rounds leave in announced order, each once all its announced pushers have pushed.
"""

from collections import deque
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from ps.errors import OutOfOrder
from ps.protocol import TRAIN, Announce, Pull, Push, Round

AHEAD = 1024
"""rounds for which messages are held before they are announced; a sender further ahead is out of step"""


@dataclass(frozen=True)
class Received:
    """A message and who sent it."""

    sender: bytes
    header: Any
    arrays: Any
    at_seconds: float = field(default_factory=perf_counter, compare=False)
    """when it arrived, by this process's clock"""


@dataclass
class Gathering:
    """One round, as far as its messages have arrived."""

    announced: Received | None = None
    pushes: dict[int, Received] = field(default_factory=dict)
    pulls: list[Received] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return self.announced is not None and self.pushes.keys() >= set(self.announced.header.pushers)


class Rounds:
    """The rounds of one generation."""

    def __init__(self) -> None:
        self.applied: Round | None = None
        self._last: Round | None = None
        self._queue: deque[Round] = deque()
        self._gathering: dict[Round, Gathering] = {}

    def announce(self, announced: Received) -> list[Received]:
        """Takes the next round; returns the pushes that arrived before it, to be pushed again now that it is known."""
        header: Announce = announced.header
        at = (header.step, header.phase)
        if self._last is not None and at <= self._last:
            raise OutOfOrder(
                f"round {at} was announced after round {self._last}; expected a later one; announce each once"
            )
        self._last = at
        self._queue.append(at)
        gathering = self._gathering.setdefault(at, Gathering())
        gathering.announced = announced
        early, gathering.pushes = gathering.pushes, {}
        return [early[worker] for worker in sorted(early)]

    def announced(self, at: Round) -> bool:
        """Whether the round is announced and not yet applied."""
        return at in self._gathering and self._gathering[at].announced is not None

    def push(self, push: Received) -> None:
        header: Push = push.header
        at = (header.step, header.phase)
        gathering = self._waiting_for(at, "push")
        announced = gathering.announced
        if announced is not None and header.worker not in announced.header.pushers:
            raise OutOfOrder(
                f"worker {header.worker} pushed in round {at} without being announced; expected a push only from "
                f"workers {announced.header.pushers}; does its order match the announcement?"
            )
        if header.worker in gathering.pushes:
            raise OutOfOrder(
                f"worker {header.worker} pushed twice in round {at}; expected one push; the first one counts"
            )
        gathering.pushes[header.worker] = push

    def pull(self, pull: Received) -> bool:
        """Whether the pull's round has been applied; if not, the pull is held until it is."""
        header: Pull = pull.header
        at = (header.step, TRAIN)
        if self.applied is not None and at <= self.applied:
            return True
        self._waiting_for(at, "pull").pulls.append(pull)
        return False

    def next_complete(self) -> Gathering | None:
        """The oldest announced round if all its pushes are in. It counts as applied from now on."""
        if not self._queue or not self._gathering[self._queue[0]].complete:
            return None
        self.applied = self._queue.popleft()
        return self._gathering.pop(self.applied)

    def drop(self) -> list[Received]:
        """Forgets every waiting round; returns the pulls that will get no rows."""
        pulls = [pull for gathering in self._gathering.values() for pull in gathering.pulls]
        self._gathering.clear()
        self._queue.clear()
        return pulls

    def _waiting_for(self, at: Round, what: str) -> Gathering:
        if at not in self._gathering:
            if self._last is not None and at <= self._last:
                raise OutOfOrder(
                    f"a {what} came for round {at}, and the round is over; expected one after {self._last}; "
                    "see whether its sender follows the dispatcher's orders"
                )
            if len(self._gathering) >= AHEAD + len(self._queue):
                raise OutOfOrder(
                    f"a {what} of round {at} came too early: {AHEAD} rounds wait to be announced already; expected "
                    "announcements to keep up; see whether the dispatcher is alive"
                )
            self._gathering[at] = Gathering()
        return self._gathering[at]

"""When links of idle workers are measured: a worker without samples moves nothing that would tell how fast its link is.

It is asked to fetch a few bytes: soon after it became idle, until its speed is known, and then at intervals that
double. What other workers do is not disturbed, and a run that is told its links measures none.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from time import monotonic

PROBE_BYTES = 64 << 10
"""Bytes of one measurement."""
FIRST_SECONDS = 0.2
"""Time between two measurements while the speed is unknown, or has just turned out to be another one."""
KNOWN_SECONDS = 2.0
"""Time after the first measurement of a known speed; it doubles from one to the next."""
UNANSWERED_SECONDS = 60.0
"""Time after which a worker that has not answered is asked again."""


@dataclass
class ProbeTurn:
    """When one worker is asked next."""

    at: float
    seconds: float = KNOWN_SECONDS
    """Time until the one after that, if the speed is known."""


class LinkProbes:
    """The turns of all idle workers, by name."""

    def __init__(self, most_seconds: float, clock: Callable[[], float] = monotonic) -> None:
        """most_seconds: longest time between two measurements of a link; 0: none are made."""
        self._most_seconds = most_seconds
        self._clock = clock
        self._turns: dict[str, ProbeTurn] = {}

    def restart(self) -> None:
        """Begins with short intervals again: others take part from now on."""
        self._turns.clear()

    def due(self, idle: Collection[str]) -> list[str]:
        """Those of the idle workers that are to be asked now; each is then waited for."""
        if not self._most_seconds:
            return []
        now = self._clock()
        for name in self._turns.keys() - idle:
            del self._turns[name]
        found = [name for name in sorted(idle) if self._turns.setdefault(name, ProbeTurn(now)).at <= now]
        for name in found:
            self._turns[name].at = now + UNANSWERED_SECONDS
        return found

    def answered(self, name: str, is_known: bool) -> None:
        """Notes a measurement. is_known: whether the speed is, and is about what it was."""
        if (turn := self._turns.get(name)) is None:
            return
        if not is_known:
            turn.at = self._clock() + FIRST_SECONDS
            turn.seconds = KNOWN_SECONDS
            return
        turn.at = self._clock() + min(turn.seconds, self._most_seconds)
        turn.seconds *= 2

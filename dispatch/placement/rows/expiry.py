"""When keys are forgotten: those that no sample has had for so many steps, or for so many hours of events.

They are looked for only now and then, because that reads the last step of every row: a key is forgotten at most a
sixteenth later than it could be. Each decision records the step before which keys were last used, so that it can be
repeated whatever the settings are by then.

Hours are those of event times, not of this machine: a run that reads a month of events in a day forgets as one that
took a month. ``StepTime`` says how far event time had come at a step; a few of them span the period.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

PARTS = 16
"""How often keys are looked for in the time after which they are forgotten."""
HOUR_SECONDS = 3600.0


class StepTime(NamedTuple):
    """A step, and the event time of the newest sample up to it, in seconds since 1970."""

    step: int
    event_seconds: float


class Expiry:
    """Says in which steps keys are forgotten, and which."""

    def __init__(self, steps: int, hours: float, lookahead: int = 0, times: Iterable[StepTime] = ()) -> None:
        """steps, hours: after which keys are forgotten, at most one of both above 0.

        lookahead: steps that may be under way when the next one is decided; times: those of a checkpoint.
        """
        self._lookahead = lookahead
        self._steps = steps
        self._seconds = hours * HOUR_SECONDS
        self._times = deque(times)

    @property
    def times(self) -> tuple[StepTime, ...]:
        """Times of earlier steps that later decisions depend on, oldest first."""
        return tuple(self._times)

    def forget_before(self, step: int, event_seconds: float) -> int:
        """The step since which a key must have been used to be known in this one; 0: none is forgotten.

        event_seconds: of the newest sample up to the step before; 0: not known.
        """
        if self._seconds:
            return self._forget_by_time(step, event_seconds)
        every = max(1, self._steps // PARTS)
        is_due = 0 < self._steps < step and step % every == 0
        return step - self._steps if is_due else 0

    def note(self, step: int, event_seconds: float) -> bool:
        """Notes how far event time has come before a step, if that is a sixteenth of the period further than before;
        returns whether it did.
        """
        if not self._seconds or not event_seconds:
            return False
        if self._times and event_seconds < self._times[-1].event_seconds + self._seconds / PARTS:
            return False
        self._times.append(StepTime(step, event_seconds))
        return True

    def _forget_by_time(self, step: int, event_seconds: float) -> int:
        if not self.note(step, event_seconds):
            return 0
        before = 0
        while self._times[0].event_seconds <= event_seconds - self._seconds:
            before = self._times.popleft().step
        # after a gap in the stream, steps that used a key long ago may still be under way
        return max(0, min(before, step - self._lookahead - 2))

"""How long steps of each set of workers took, by the clock.

A model proposes who should take part; measured steps show whether it was right. A measurement of a set is valid while
the links of its members and the size of the batch are about the same, and for a number of steps: after those the set
may be tried again, at intervals that double every time it is left for a faster one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import msgspec

LEFT_OUT = 2
"""First steps of a stay that are ignored: they hand weights over and finish orders of the set before."""
MEASURED = 8
"""Steps after which the time of a set counts as known."""
LONGEST_TRIAL = 24
"""Most steps of a trial that keeps becoming faster."""
RECENT = 16
"""Number of latest steps whose median is the time of a set."""
LATEST = 4
"""Number of latest steps whose median is the time of a set that has just become slower."""
KEPT = 64
"""Number of latest steps of a stay that are kept."""
SAME_INPUT = 1.5
"""Factor by which a link or a batch may change before a measured time is discarded."""
DISAPPOINTED = 3
"""Steps that are enough to judge a set if all of them are much slower than the set was before."""
FAR_SLOWER = 4.0
"""A trial whose first steps take this many times as long as the rival's is ended at once."""
HOPELESS = 10.0
"""A trial with a step that takes this many times the rival's is ended with its very first one."""
SLOWED = 1.3
"""A set that takes this many times its fastest median since it won is compared with all others again."""
LEAST_WAIT = 64
"""Steps after which a set may be tried again for the first time; until then its measured time is fresh."""
MOST_WAIT = 4096
"""Most steps until then, since the wait doubles whenever the set is left for a faster one."""


class SetTime(msgspec.Struct, frozen=True):
    """What is known of a set."""

    seconds: float
    """Seconds of a step."""
    beyond: float
    """Seconds of these that the model did not expect."""
    row_seconds: tuple[float, ...]
    """Seconds of a row over each member's link at that time."""
    samples: int
    """Samples of a batch at that time."""
    step: int
    """Step at which it was measured last."""
    leaves: int = 0
    """How often it was left for a faster one."""
    is_settled: bool = True
    """Whether enough steps were measured; those of a generation's first set may be few, with empty
    caches.
    """
    is_even: bool = False
    """Whether its members' links and processors were about equally fast."""

    def holds(self, samples: int, row_seconds: Sequence[float]) -> bool:
        """Whether the measurement is valid: links and batches are about the same."""
        now = (samples, *row_seconds)
        then = (self.samples, *self.row_seconds)
        return all(
            one <= SAME_INPUT * other and other <= SAME_INPUT * one for one, other in zip(now, then, strict=True)
        )

    def is_fresh(self, step: int) -> bool:
        """Whether it was measured so recently that the machine as a whole is as fast now as it was then."""
        return step - self.step < LEAST_WAIT

    def is_due(self, step: int) -> bool:
        """Whether it is time to try the set again."""
        return not self.is_settled or step - self.step >= min(LEAST_WAIT << min(self.leaves, 16), MOST_WAIT)


class KnownSet(msgspec.Struct, frozen=True):
    """A set and its measurement, at one moment."""

    members: tuple[str, ...]
    time: SetTime


class SetTimes:
    """Times of a run's sets by the names of their members; kept across generations."""

    def __init__(self) -> None:
        self._times: dict[frozenset[str], SetTime] = {}

    def of(self, members: frozenset[str]) -> SetTime | None:
        return self._times.get(members)

    def put(self, members: frozenset[str], time: SetTime) -> None:
        self._times[members] = time

    def leave(self, members: frozenset[str]) -> None:
        """Notes that a set was left for a faster one."""
        if (time := self._times.get(members)) is not None:
            self._times[members] = msgspec.structs.replace(time, leaves=time.leaves + 1)

    def save(self) -> tuple[KnownSet, ...]:
        """The counterpart of ``load``."""
        return tuple(KnownSet(tuple(sorted(members)), time) for members, time in self._times.items())

    def load(self, known: Sequence[KnownSet]) -> None:
        self._times = {frozenset(each.members): each.time for each in known}

    def within(self, names: Sequence[str]) -> dict[frozenset[str], SetTime]:
        """Times of the sets that these workers can form."""
        return {members: time for members, time in self._times.items() if members <= {*names}}


@dataclass
class Stay:
    """Consecutive steps with one set."""

    members: frozenset[str]
    began: int
    """First step."""
    is_first: bool
    """Whether it is the first of its generation: two steps are enough then at first."""
    rival: float = float("inf")
    """Seconds of the set that it has to beat, if it is a trial."""
    may_lose: float = 0.0
    """Seconds that the trial may cost."""
    known: float = float("inf")
    """Seconds of a step when the set was measured before; infinite: it was not."""
    is_clear: bool = False
    """Whether so much is expected of it that its first steps are not held against it, however long they take."""

    def __post_init__(self) -> None:
        self._seconds: list[float] = []
        self._first: list[float] = []
        """Seconds of the first steps, which are left out."""
        self._newest = 0.0
        self._lost = 0.0
        self._has_won = False
        self.least = float("inf")
        """The fastest median since it won."""

    def add(self, step: int, seconds: float) -> None:
        """Adds one more step."""
        is_first = step < self.began + LEFT_OUT
        self._lost += 0.0 if is_first and self.is_clear else max(0.0, seconds - self.rival)
        self._newest = seconds
        if not is_first:
            self._seconds.append(seconds)
            del self._seconds[:-KEPT]
        else:
            self._first.append(seconds)

    def change_seconds(self) -> float | None:
        """By how much its first steps were longer, told once and as soon as that can be said."""
        if not self._first or len(self._seconds) < MEASURED:
            return None
        longer = sum(self._first) - len(self._first) * self.seconds
        self._first.clear()
        return max(0.0, longer)

    def win(self) -> None:
        """Notes that nothing known is faster: it is no longer a trial."""
        self.rival = float("inf")
        self._has_won = True
        if len(self._seconds) >= MEASURED:
            self.least = min(self.least, self.seconds)

    def accept(self) -> None:
        """Takes what its steps take now for what is usual."""
        self.least = self.seconds

    @property
    def is_trial(self) -> bool:
        return self.rival < float("inf")

    @property
    def has_won(self) -> bool:
        """Whether nothing was faster when candidates were looked at last."""
        return self._has_won

    @property
    def is_settled_winner(self) -> bool:
        """Whether it has won, and its latest steps are all of a settled set."""
        return self._has_won and len(self._seconds) >= RECENT

    @property
    def has_slowed(self) -> bool:
        """Whether it takes clearly longer than it did after it had won."""
        return self.seconds > SLOWED * self.least

    @property
    def seconds(self) -> float:
        """Seconds of a step, by the latest ones; among the first few of a run the fastest, since starting takes extra
        time.
        """
        recent = self._seconds[-RECENT:] or [self._newest]
        return min(recent) if self.is_first and len(recent) < MEASURED else median(recent)

    @property
    def latest_seconds(self) -> float:
        """The same by the very latest steps, if these took longer: those before them tell how it was."""
        return max(self.seconds, median(self._seconds[-LATEST:] or [self._newest]))

    @property
    def is_known(self) -> bool:
        """Whether its time may be compared with others'."""
        enough = 2 if self.is_first else MEASURED
        return len(self._seconds) >= enough or self._is_hopeless or self._has_disappointed

    @property
    def is_settled(self) -> bool:
        """Whether its time is representative; for a trial that was stopped early it counts as such."""
        return len(self._seconds) >= MEASURED or not self.is_first

    @property
    def may_improve(self) -> bool:
        """Whether a trial is not faster yet but becomes so, while its caches fill, and is not a long one."""
        half = min(len(self._seconds) // 2, MEASURED)
        if not half or self._is_hopeless or len(self._seconds) >= LONGEST_TRIAL:
            return False
        earlier = median(self._seconds[-2 * half : -half])
        later = median(self._seconds[-half:])
        return later - max(0.0, earlier - later) < self.rival

    @property
    def is_returning(self) -> bool:
        """Whether it was faster before, is no trial, and may become so again: others had its rows meanwhile."""
        is_slower = self.known < self.seconds and not self._has_disappointed
        return is_slower and not self.is_trial and not self._has_won and len(self._seconds) < LONGEST_TRIAL

    @property
    def _has_disappointed(self) -> bool:
        """Whether it is much slower than it was before, after a few steps already."""
        return len(self._seconds) >= DISAPPOINTED and min(self._seconds) > SAME_INPUT * self.known

    @property
    def _is_hopeless(self) -> bool:
        """Whether the trial has cost what it may, and takes longer than the rival still."""
        are_far_slower = len(self._first) >= LEFT_OUT and min(self._first) > FAR_SLOWER * self.rival
        is_over = are_far_slower or self._newest > HOPELESS * self.rival
        has_begun = bool(self._seconds) or (is_over and not self.is_clear)
        usual = median(self._seconds or [self._newest])  # single steps may take several times as long in any set
        return has_begun and self._lost > self.may_lose and min(self._newest, usual) > self.rival

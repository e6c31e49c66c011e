"""Chooses between the hub and a ring, by the clock, for a policy that replicates rows in a ring.

Such a run begins over the hub, where it also finds out who should take part. Once the time of its steps is known, a
ring of all workers is one more candidate:

1. *expected*: the ring is tried if it should be clearly faster (MIN_IMPROVEMENT). That is known of the dense gradients
   alone, by the links; which rows it would replicate is decided in it, at its checkpoints. Links are not all: over the
   hub, shards sum the gradients, and processors may limit. So a ring that should not be much slower is tried, too, if
   the trial cannot cost more than MAY_COST steps; again only after so many steps that trials take EXPLORED of them, or
   if steps over the hub have become clearly slower than those of the trial were: the first steps of a run are its
   fastest, so a ring that follows them may lose to what the hub does not reach either.
2. *tried*: a change takes a generation, which begins with a checkpoint. A trial ends after TRIAL_STEPS, or at once if
   it has cost what MAY_COST steps over the hub take.
3. *confirmed or taken back*: the ring stays if its steps were faster. Otherwise the run returns to the hub, and tries
   again after intervals that double.
4. A ring whose steps become much slower (SLOWED) than they were and than those over the hub were is left: its slowest
   link holds up everybody. Otherwise it stays: other work on the machines would slow down the hub as well, and the
   steps over the hub that are known are early ones.

It counts measured steps and knows no links; how long a step in a ring should take is given.
"""

from collections import deque
from dataclasses import dataclass
from statistics import median

import msgspec

from dispatch.placement.capacity.participation import MIN_IMPROVEMENT
from dispatch.placement.capacity.set_times import LEAST_WAIT, LEFT_OUT, MOST_WAIT, RECENT, SLOWED

TRIAL_STEPS = 64
"""Steps of a trial: enough for who takes part to be chosen in the ring as well."""
MAY_COST = 24
"""Steps over the hub whose time a trial may cost more than the hub would have taken."""
EXPLORED = 0.02
"""Most of the time that trials may take which nothing but the clock speaks for, after the first one."""


class HubOrRingState(msgspec.Struct, frozen=True):
    """What a checkpoint stores of the choice."""

    is_ring: bool = False
    hub_seconds: float | None = None
    """Seconds of a step over the hub; None: not known."""
    tried_seconds: float | None = None
    """Seconds of a step in the ring that was left last; None: none was."""
    tries: int = 0
    """How often the ring was tried and left."""
    is_confirmed: bool = False
    """Whether the ring has won a trial, and stays."""


@dataclass(frozen=True)
class WayChange:
    """The run changes to the other way, or stays with the one that it tried."""

    is_ring: bool
    reason: str
    seconds: float
    """Of a step with it, expected or measured; of the hub that is returned to, as it was."""
    before: float
    """Of a step with the other."""

    def facts(self) -> dict[str, str | float]:
        """The change in numbers, for a log."""
        seconds, before = (float(f"{each:.4g}") for each in (self.seconds, self.before))
        way = "ring" if self.is_ring else "hub"
        return {"way": way, "reason": self.reason, "step_seconds": seconds, "step_seconds_before": before}


class HubOrRing:
    """Learns how long steps take either way; kept across generations."""

    def __init__(self, state: HubOrRingState | None = None) -> None:
        self._state = state or HubOrRingState()
        self._is_open = False
        """Whether this generation may be followed by one of the other kind."""
        self._was_ring = False
        """Whether this generation is in a ring."""
        self._steps = 0
        """Measured steps of this generation."""
        self._recent: deque[float] = deque(maxlen=RECENT)
        """Seconds of its latest steps."""
        self._least = float("inf")
        """The shortest time of a step in the ring since it was confirmed."""
        self._lost = 0.0
        """Seconds that the trial has cost."""

    @property
    def is_ring(self) -> bool:
        """Whether the next generation should be in a ring, if it may choose."""
        return self._state.is_ring

    @property
    def is_confirmed(self) -> bool:
        """Whether the run is in a ring that has won its trial."""
        return self._was_ring and self._state.is_confirmed

    @property
    def has_changed(self) -> bool:
        """Whether the run should change to the other way, which takes a generation."""
        return self._is_open and self._state.is_ring != self._was_ring

    @property
    def due_after(self) -> float | None:
        """Seconds of a step over the hub, if it is time to consider the ring; None: it is not."""
        wait = min(LEAST_WAIT << min(self._state.tries, 16), MOST_WAIT) if self._state.tries else 0
        is_hub = self._is_open and not self._was_ring and not self._state.is_ring
        return self._state.hub_seconds if is_hub and self._steps >= wait else None

    def save(self) -> HubOrRingState:
        return self._state

    def start_generation(self, is_open: bool, is_ring: bool) -> None:
        """is_open: whether both ways are possible. is_ring: which one it is."""
        self._is_open = is_open
        self._was_ring = is_ring
        self._steps, self._lost = 0, 0.0
        self._recent.clear()
        self._least = float("inf")

    def measure(self, seconds: float, is_settled: bool) -> WayChange | None:
        """Records how long a step took; returns the change that follows from it.

        is_settled: whether it is found who takes part.
        """
        if not self._is_open or self.has_changed:
            return None
        self._steps += 1
        if self._steps <= LEFT_OUT:
            return None
        self._recent.append(seconds)
        if self._was_ring:
            return self._watch() if self._state.is_confirmed else self._judge(seconds)
        if is_settled and len(self._recent) == RECENT:
            self._set(hub_seconds=median(self._recent))
        return None

    def consider(self, ring_seconds: float) -> WayChange | None:
        """Tries the ring if its steps are expected to be clearly faster, or if only the clock can tell.

        ring_seconds: expected of a step; only asked for when it is due.
        """
        hub_seconds = self._state.hub_seconds
        if hub_seconds is None:
            return None
        if ring_seconds < (1 - MIN_IMPROVEMENT) * hub_seconds:
            reason = "expected to be faster"
        elif (tried := self._state.tried_seconds) is not None and tried < (1 - MIN_IMPROVEMENT) * hub_seconds:
            reason, ring_seconds = "the hub is slower than the ring was", tried
        elif self._may_find_out(ring_seconds - hub_seconds, hub_seconds):
            reason = "only the clock can tell"
        else:
            return None
        self._set(is_ring=True, is_confirmed=False)
        return WayChange(True, reason, ring_seconds, hub_seconds)

    def _may_find_out(self, slower_seconds: float, hub_seconds: float) -> bool:
        """Whether a trial costs little enough, if a step in the ring should take so much longer."""
        tries = self._state.tries
        is_time = not tries or self._steps >= MAY_COST / EXPLORED * 2 ** (tries - 1)
        return is_time and TRIAL_STEPS * slower_seconds <= MAY_COST * hub_seconds

    def _judge(self, seconds: float) -> WayChange | None:
        """Decides whether a ring that is tried stays."""
        hub_seconds = self._state.hub_seconds or 0.0
        now = median(self._recent)
        self._lost += max(0.0, seconds - hub_seconds)
        is_over = self._steps >= TRIAL_STEPS
        if is_over and now < hub_seconds:
            self._set(is_confirmed=True)
            return WayChange(True, "was faster when measured", now, hub_seconds)
        if is_over or self._lost > MAY_COST * hub_seconds:
            return self._leave("the ring was slower when measured", hub_seconds, now)
        return None

    def _watch(self) -> WayChange | None:
        """Leaves a ring that has become much slower than it was, and than the hub was."""
        if len(self._recent) < RECENT:
            return None
        now = median(self._recent)
        self._least = min(self._least, now)
        hub_seconds = self._state.hub_seconds or 0.0
        has_slowed = now > SLOWED * max(self._least, hub_seconds)
        return self._leave("the ring has become slower", hub_seconds, now) if has_slowed else None

    def _leave(self, reason: str, hub_seconds: float, ring_seconds: float) -> WayChange:
        tries = self._state.tries + 1
        self._set(is_ring=False, is_confirmed=False, hub_seconds=None, tried_seconds=ring_seconds, tries=tries)
        return WayChange(False, reason, hub_seconds, ring_seconds)

    def _set(self, **changes: float | bool | None) -> None:
        self._state = msgspec.structs.replace(self._state, **changes)

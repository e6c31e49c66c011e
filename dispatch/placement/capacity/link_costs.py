"""The cost of moving a row for each worker, measured from the transfers it reports instead of being configured.

A speed is the upper quartile of a worker's latest transfers, step by step: other load on a machine makes transfers
slower, never faster. Small transfers are ignored, since their time is mostly delay: a worker that gets fewer samples
must not appear slower for it. Costs are in units of the fastest link, in fine steps (STEP), and change only when the
speed has clearly left its current cost (HYSTERESIS), so decisions stay the same while links do. A worker whose speed is
not known costs as much as the fastest.

Legend: n workers.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, log2

import msgspec
import numpy as np

from dispatch.placement.arrays import F64

LEAST_BYTES = 32 * 1024
"""Least bytes of a step's transfers that say something about the link."""
SHORTEST_SECONDS = 1e-6
FIRST_TRANSFERS = 2
"""Number of first transfers that are ignored: they are mostly connecting and waking up."""
KNOWN_TRANSFERS = 2
"""Number of transfers after which a speed counts as known."""
RECENT_TRANSFERS = 16
CHANGED = 2.0
"""Factor from which on a link that is measured while it is idle counts as another one."""
STEP = 0.25
"""Distance of two costs, in powers of two: 19 %."""
HYSTERESIS = 0.5
"""How far, in powers of two, a speed must be from its cost before the cost follows."""
MOST_SLOWER = 10
"""Most powers of two by which a link counts as slower than the fastest."""


@dataclass
class LinkSpeed:
    """What is known from one worker's transfers."""

    gbits: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_TRANSFERS))
    """Gbit/s of the latest steps' transfers."""
    transfers: int = 0
    slower: float = 0.0
    """Powers of two by which it counts as slower than the fastest, a multiple of STEP."""
    is_doubted: bool = False
    """Whether the last measurement of the idle link was of another speed."""

    def add(self, nbytes: int, seconds: float) -> None:
        """Adds one step's transfers."""
        if nbytes < LEAST_BYTES or not (isfinite(seconds) and seconds > SHORTEST_SECONDS):
            return
        self.transfers += 1
        if self.transfers > FIRST_TRANSFERS:
            self.gbits.append(nbytes * 8e-9 / seconds)

    def add_probe(self, nbytes: int, seconds: float) -> bool:
        """Adds a transfer that nothing else competed with; returns whether the link is about as fast as it was.

        If it is not twice in a row, what was measured before is forgotten; once may be a busy machine.
        """
        known = self.gbit
        if nbytes < LEAST_BYTES or seconds <= SHORTEST_SECONDS:
            return known > 0.0
        gbit = nbytes * 8e-9 / seconds
        is_the_same = known / CHANGED < gbit < known * CHANGED
        if known and not is_the_same:
            self.is_doubted = not self.is_doubted
            if self.is_doubted:
                return False
            self.gbits.clear()
            self.gbits.append(gbit)
        self.is_doubted = False
        self.add(nbytes, seconds)
        return is_the_same

    @property
    def gbit(self) -> float:
        """Gbit/s; 0: not known yet."""
        if len(self.gbits) < KNOWN_TRANSFERS:
            return 0.0
        return sorted(self.gbits)[3 * len(self.gbits) // 4]


class LinkState(msgspec.Struct, frozen=True):
    """What is known from one worker's transfers, at one moment."""

    gbits: tuple[float, ...]
    transfers: int
    slower: float


class MeasuredLinks:
    """The links of a run's workers by name; they are kept across generations."""

    def __init__(self) -> None:
        self._links: dict[str, LinkSpeed] = {}

    def of(self, worker: str) -> LinkSpeed:
        return self._links.setdefault(worker, LinkSpeed())

    def save(self) -> dict[str, LinkState]:
        """The links by name; the counterpart of ``load``."""
        return {name: LinkState(tuple(link.gbits), link.transfers, link.slower) for name, link in self._links.items()}

    def load(self, states: Mapping[str, LinkState]) -> None:
        self._links = {
            name: LinkSpeed(deque(state.gbits, maxlen=RECENT_TRANSFERS), state.transfers, state.slower)
            for name, state in states.items()
        }

    def fastest_gbit(self, workers: Sequence[str]) -> float:
        return max(self.of(worker).gbit for worker in workers)

    def row_costs(self, workers: Sequence[str]) -> F64:
        """Cost of a row over each link in units of the fastest; equal until speeds are known."""
        links = [self.of(worker) for worker in workers]
        fastest = self.fastest_gbit(workers)
        for link in links:
            if gbit := link.gbit:
                slower = min(log2(fastest) - log2(gbit), MOST_SLOWER)
                if abs(slower - link.slower) > HYSTERESIS:
                    link.slower = STEP * round(slower / STEP)
        least = min(link.slower for link in links)
        return np.array([2.0 ** (link.slower - least) for link in links])

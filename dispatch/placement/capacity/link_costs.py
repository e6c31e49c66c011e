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
    odd_gbit: float = 0.0
    """Gbit/s that the last measurement of the idle link found, if that was another speed; 0: it was not."""

    def add(self, nbytes: int, seconds: float) -> None:
        """Adds one step's transfers."""
        gbit = gbit_of(nbytes, seconds)
        if not gbit:
            return
        self.transfers += 1
        if self.transfers > FIRST_TRANSFERS:
            self.gbits.append(gbit)

    def add_probe(self, nbytes: int, seconds: float) -> bool:
        """Adds a transfer that nothing else competed with; returns whether the link is about as fast as it was.

        An odd speed may be that of a busy machine. Only two in a row that agree replace what was known.
        """
        known = self.gbit
        gbit = gbit_of(nbytes, seconds)
        if not gbit:
            return known > 0.0
        if not known or are_alike(gbit, known):
            self.odd_gbit = 0.0
            self.add(nbytes, seconds)
            return known > 0.0
        if are_alike(gbit, self.odd_gbit):
            self.gbits.clear()
            self.gbits.extend((self.odd_gbit, gbit))
            self.odd_gbit = 0.0
        else:
            self.odd_gbit = gbit
        return False

    @property
    def gbit(self) -> float:
        """Gbit/s; 0: not known yet."""
        if len(self.gbits) < KNOWN_TRANSFERS:
            return 0.0
        return sorted(self.gbits)[3 * len(self.gbits) // 4]


def gbit_of(nbytes: int, seconds: float) -> float:
    """Gbit/s of a transfer; 0: it says nothing about the link."""
    is_telling = nbytes >= LEAST_BYTES and isfinite(seconds) and seconds > SHORTEST_SECONDS
    return nbytes * 8e-9 / seconds if is_telling else 0.0


def are_alike(gbit: float, other_gbit: float) -> bool:
    """Whether two speeds of an idle link may be those of the same link."""
    return other_gbit / CHANGED < gbit < other_gbit * CHANGED


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

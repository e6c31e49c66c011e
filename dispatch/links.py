"""What moving a row costs each worker, found out from the transfers it reports instead of being configured.

Speeds are sums of bytes over sums of seconds, both fading, so that large transfers count more than small ones, whose
time is mostly delay. One hiccup of a machine counts as SURPRISE times the expected seconds at most. Costs are powers of
two in units of the fastest link, and change only when the speed has clearly left the step it was on: decisions stay the
same while links do. A worker whose speed is not known costs as much as the fastest.

Legend: n workers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, log2

import numpy as np
from numpy.typing import NDArray

FADING = 0.9
"""what is left of earlier transfers after each step with one"""
FIRST_TRANSFERS = 2
"""steps left out: they are mostly connecting and waking up"""
KNOWN_BYTES = 128 * 1024
KNOWN_TRANSFERS = 5
"""after so many bytes and steps, those left out included, a speed counts as known"""
SURPRISE = 4.0
CLEARLY = 0.75
"""how far, in powers of two, a speed must lie from its cost's step before the cost follows"""
MOST_STEPS = 10
"""a link is never taken for more than so many powers of two slower than the fastest"""


@dataclass
class LinkSpeed:
    """What one worker's transfers have shown."""

    nbytes: float = 0.0
    seconds: float = 0.0
    """both fading"""
    moved_bytes: int = 0
    transfers: int = 0
    slower: int = 0
    """powers of two by which it is taken for slower than the fastest"""

    def add(self, nbytes: int, seconds: float) -> None:
        """One step's transfers."""
        if nbytes <= 0 or not (isfinite(seconds) and seconds > 0):
            return
        self.transfers += 1
        if self.transfers <= FIRST_TRANSFERS:
            return
        if self.is_known:
            seconds = min(seconds, SURPRISE * nbytes * self.seconds / self.nbytes)
        self.nbytes = FADING * self.nbytes + nbytes
        self.seconds = FADING * self.seconds + seconds
        self.moved_bytes += nbytes

    @property
    def is_known(self) -> bool:
        return self.transfers >= KNOWN_TRANSFERS and self.moved_bytes >= KNOWN_BYTES

    @property
    def gbit(self) -> float:
        """Gbit/s; 0: not known yet."""
        return self.nbytes * 8e-9 / self.seconds if self.is_known else 0.0


class MeasuredLinks:
    """The links of a run's workers by name; they are kept over generations."""

    def __init__(self) -> None:
        self._links: dict[str, LinkSpeed] = {}

    def of(self, worker: str) -> LinkSpeed:
        return self._links.setdefault(worker, LinkSpeed())

    def fastest_gbit(self, workers: Sequence[str]) -> float:
        return max(self.of(worker).gbit for worker in workers)

    def row_costs(self, workers: Sequence[str]) -> NDArray[np.float64]:
        """Cost of a row over each link in units of the fastest; equal until speeds are known."""
        links, fastest = [self.of(worker) for worker in workers], self.fastest_gbit(workers)
        for link in links:
            if link.is_known:
                slower = min(log2(fastest / link.gbit), MOST_STEPS)
                if abs(slower - link.slower) > CLEARLY:
                    link.slower = round(slower)
        least = min(link.slower for link in links)
        return np.array([2.0 ** (link.slower - least) for link in links])

"""The cost of moving a row for each worker, measured from the transfers it reports instead of being configured.

A speed is the upper quartile of a worker's latest transfers, step by step: other load on a machine makes transfers
slower, never faster. Small transfers are ignored, since their time is mostly delay: a worker that gets fewer samples
must not appear slower for it. Each direction of a link has a speed of its own; one that is not known counts as the
other. Costs are in units of the fastest downlink, in fine steps (STEP), and change only when the speed has clearly left
its current cost (HYSTERESIS), so decisions stay the same while links do. No uplink counts as faster than that, since
what a fast one carries is timed by chance. A worker whose speed is not known costs as much as the fastest.

Legend: n workers.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, log2
from typing import NamedTuple

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


class RowCosts(NamedTuple):
    """Cost of a row over each worker's link, in units of the fastest downlink."""

    pull_n: F64
    push_n: F64


@dataclass
class LinkSpeed:
    """What is known from one worker's transfers in one direction."""

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

    def compare(self, fastest_gbit: float, least: float) -> None:
        """Updates by how much it counts as slower than that link, at least by so many powers of two."""
        if gbit := self.gbit:
            slower = max(least, min(log2(fastest_gbit) - log2(gbit), MOST_SLOWER))
            if abs(slower - self.slower) > HYSTERESIS:
                self.slower = STEP * round(slower / STEP)

    def save(self) -> "LinkState":
        return LinkState(tuple(self.gbits), self.transfers, self.slower)

    @classmethod
    def load(cls, state: "LinkState") -> "LinkSpeed":
        return cls(deque(state.gbits, maxlen=RECENT_TRANSFERS), state.transfers, state.slower)


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
    uplink: "LinkState | None" = None
    """The same of its uplink; None: nothing is known of it, as in a state that was saved when it was not measured."""


class MeasuredLinks:
    """The links of a run's workers by name; they are kept across generations."""

    def __init__(self) -> None:
        self._downlinks: dict[str, LinkSpeed] = {}
        self._uplinks: dict[str, LinkSpeed] = {}

    def of(self, worker: str) -> LinkSpeed:
        """What is known of a worker's downlink."""
        return self._downlinks.setdefault(worker, LinkSpeed())

    def uplink_of(self, worker: str) -> LinkSpeed:
        return self._uplinks.setdefault(worker, LinkSpeed())

    def save(self) -> dict[str, LinkState]:
        """The links by name; the counterpart of ``load``."""
        names = dict.fromkeys((*self._downlinks, *self._uplinks))
        return {
            name: msgspec.structs.replace(self.of(name).save(), uplink=self.uplink_of(name).save()) for name in names
        }

    def load(self, states: Mapping[str, LinkState]) -> None:
        self._downlinks = {name: LinkSpeed.load(state) for name, state in states.items()}
        uplinks = {name: state.uplink for name, state in states.items()}
        self._uplinks = {name: LinkSpeed.load(state) for name, state in uplinks.items() if state is not None}

    def fastest_gbit(self, workers: Sequence[str]) -> float:
        """Speed of the fastest downlink; 0: none is known."""
        return max(self.of(worker).gbit or self.uplink_of(worker).gbit for worker in workers)

    def costs(self, workers: Sequence[str]) -> RowCosts:
        """Cost of a row over each link in units of the fastest downlink; equal until speeds are known."""
        fastest = self.fastest_gbit(workers)
        pull_slower, push_slower = [], []
        for worker in workers:
            down, up = self.of(worker), self.uplink_of(worker)
            down.compare(fastest, least=0.0)
            up.compare(fastest, least=0.0)
            pull_slower.append(up.slower if up.gbit and not down.gbit else down.slower)
            push_slower.append(up.slower if up.gbit else down.slower)
        least = min(pull_slower)
        return RowCosts(
            *(np.array([2.0 ** (each - least) for each in slower]) for slower in (pull_slower, push_slower))
        )

    def row_costs(self, workers: Sequence[str]) -> F64:
        """Cost of pulling a row over each link."""
        return self.costs(workers).pull_n

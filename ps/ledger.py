"""What a shard received and sent, by round and worker, to check the directory's accounting. Old entries are dropped.

Entries are columns of numbers in a ring, 64 bytes each. Only the newest are indexed by their keys: counts are nearly
always for a round under way, and an entry of a later step than all others cannot exist yet. Any other entry is searched
for in the columns.
"""

from collections import OrderedDict

import numpy as np

from ps.protocol import LedgerArrays, Round

ENTRIES = 65536
"""Lines that are kept: the last 8,192 rounds of 8 workers."""
KNOWN_ENTRIES = 1024
"""Newest entries that are indexed by their keys."""
COLUMN = {name: number for number, name in enumerate(LedgerArrays._fields)}
KEYS = 3
"""Columns that identify an entry: step, phase and worker."""


class LedgerEntries:
    """Rows and dense floats pulled and pushed, one entry per (step, phase, worker), oldest first."""

    def __init__(self, limit: int = ENTRIES) -> None:
        self._limit = limit
        self._table = np.zeros((len(COLUMN), limit), np.int64)
        """The columns; the memory of an entry is allocated when it is first written."""
        self._entries = 0
        """Number of entries ever written; each is at its number modulo the limit."""
        self._known: OrderedDict[tuple[int, int, int], int] = OrderedDict()
        """Places of the newest entries, oldest first."""
        self._last_unknown = -1
        """The newest step of all other entries."""

    def count(self, at: Round, worker: int, **moved: int) -> None:
        """moved: counts by the names of the ledger's columns."""
        place = self._place((*at, worker))
        for column, number in moved.items():
            self._table[COLUMN[column], place] += number

    def columns(self) -> LedgerArrays:
        oldest = self._entries % self._limit if self._entries > self._limit else 0
        used = self._table[:, : self._entries]
        return LedgerArrays(*np.concatenate([used[:, oldest:], used[:, :oldest]], axis=1))

    def _place(self, key: tuple[int, int, int]) -> int:
        """The place of a key's entry; a new entry takes the place of the oldest."""
        if (place := self._known.get(key)) is not None:
            return place
        if key[0] <= self._last_unknown and (place := self._find(key)) is not None:
            return place
        place = self._entries % self._limit
        self._table[:, place] = 0
        self._table[:KEYS, place] = key
        self._entries += 1
        self._known[key] = place
        if len(self._known) > min(KNOWN_ENTRIES, self._limit):
            (step, *_), _ = self._known.popitem(last=False)
            self._last_unknown = max(self._last_unknown, step)
        return place

    def _find(self, key: tuple[int, int, int]) -> int | None:
        """The place of an entry, found by its key's columns."""
        used = self._table[:KEYS, : self._entries]
        places = np.flatnonzero((used == np.array(key)[:, None]).all(axis=0))
        return int(places[0]) if places.size else None

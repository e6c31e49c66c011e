"""What a shard saw, by round and worker, to check the directory's accounting against. The oldest lines are dropped.

Lines are columns of numbers in a ring, 64 bytes each. Only the newest are known by their keys: what is counted is
nearly always of a round under way, and a line of a later step than all others cannot be there yet. Whatever else is
asked for is looked up in the columns.
"""

from collections import OrderedDict

import numpy as np

from ps.protocol import LedgerArrays, Round

LINES = 65536
"""lines kept: 8 workers' last 8,192 rounds"""
KNOWN_LINES = 1024
"""newest lines whose keys are at hand"""
COLUMN = {name: number for number, name in enumerate(LedgerArrays._fields)}
KEYS = 3
"""columns that say which line it is: step, phase and worker"""


class LedgerLines:
    """Rows and dense floats pulled and pushed, one line per (step, phase, worker), oldest first."""

    def __init__(self, limit: int = LINES) -> None:
        self._limit = limit
        self._table = np.zeros((len(COLUMN), limit), np.int64)
        """the memory of a line is taken when it is first written"""
        self._lines = 0
        """that there have been; each is at its number modulo the limit"""
        self._known: OrderedDict[tuple[int, int, int], int] = OrderedDict()
        """places of the newest lines, oldest first"""
        self._last_unknown = -1
        """the newest step of all other lines"""

    def count(self, at: Round, worker: int, **moved: int) -> None:
        """moved: by the names of the ledger's columns."""
        place = self._place((*at, worker))
        for column, number in moved.items():
            self._table[COLUMN[column], place] += number

    def columns(self) -> LedgerArrays:
        oldest = self._lines % self._limit if self._lines > self._limit else 0
        used = self._table[:, : self._lines]
        return LedgerArrays(*np.concatenate([used[:, oldest:], used[:, :oldest]], axis=1))

    def _place(self, key: tuple[int, int, int]) -> int:
        """Where the line of a key is; a new one takes the place of the oldest."""
        if (place := self._known.get(key)) is not None:
            return place
        if key[0] <= self._last_unknown and (place := self._find(key)) is not None:
            return place
        place = self._lines % self._limit
        self._table[:, place] = 0
        self._table[:KEYS, place] = key
        self._lines += 1
        self._known[key] = place
        if len(self._known) > min(KNOWN_LINES, self._limit):
            (step, *_), _ = self._known.popitem(last=False)
            self._last_unknown = max(self._last_unknown, step)
        return place

    def _find(self, key: tuple[int, int, int]) -> int | None:
        """The place of a line, by its key's columns."""
        used = self._table[:KEYS, : self._lines]
        places = np.flatnonzero((used == np.array(key)[:, None]).all(axis=0))
        return int(places[0]) if places.size else None

"""What a shard saw, by round and worker, to check the directory's accounting against. The oldest lines are dropped."""

from collections import OrderedDict

import numpy as np

from ps.protocol import LedgerArrays, Round

LINES = 65536
"""lines kept: 8 workers' last 8,192 rounds"""
MOVED = LedgerArrays._fields[3:]
"""columns that are counted, behind step, phase and worker"""


class LedgerLines:
    """Rows and dense floats pulled and pushed, one line per (step, phase, worker), oldest first."""

    def __init__(self, limit: int = LINES) -> None:
        self._limit = limit
        self._lines: OrderedDict[tuple[int, int, int], dict[str, int]] = OrderedDict()

    def count(self, at: Round, worker: int, **moved: int) -> None:
        """moved: by the names of the ledger's columns."""
        line = self._lines.setdefault((*at, worker), dict.fromkeys(MOVED, 0))
        for column, number in moved.items():
            line[column] += number
        if len(self._lines) > self._limit:
            self._lines.popitem(last=False)

    def columns(self) -> LedgerArrays:
        lines = [(*key, *line.values()) for key, line in self._lines.items()]
        table = np.array(lines, np.int64).reshape(-1, len(LedgerArrays._fields))
        return LedgerArrays(*np.ascontiguousarray(table.T))

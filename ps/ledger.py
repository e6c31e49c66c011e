"""What a shard saw, by round and worker, to check the directory's accounting against. The oldest lines are dropped."""

from collections import OrderedDict

import numpy as np

from ps.protocol import LedgerArrays, Round

LINES = 65536
"""lines kept: 8 workers' last 8,192 rounds"""


class LedgerLines:
    """Rows pulled, owned rows pushed and parts pushed, one line per (step, phase, worker), oldest first."""

    def __init__(self, limit: int = LINES) -> None:
        self._limit = limit
        self._lines: OrderedDict[tuple[int, int, int], list[int]] = OrderedDict()

    def count(self, at: Round, worker: int, pulled: int = 0, owned: int = 0, parts: int = 0) -> None:
        line = self._lines.setdefault((*at, worker), [0, 0, 0])
        for column, number in enumerate((pulled, owned, parts)):
            line[column] += number
        if len(self._lines) > self._limit:
            self._lines.popitem(last=False)

    def columns(self) -> LedgerArrays:
        table = np.array([(*key, *line) for key, line in self._lines.items()], np.int64).reshape(-1, 6)
        step, phase, worker, pulled, owned, parts = np.ascontiguousarray(table.T)
        return LedgerArrays(step=step, phase=phase, worker=worker, pulled=pulled, owned=owned, parts=parts)

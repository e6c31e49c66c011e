"""Which rows are hot: how many may be, how often they must be used, and the profile of batches that chooses them.

Legend: n workers.
"""

from math import log, log1p

import numpy as np

from dispatch.placement.arrays import I64
from dispatch.placement.rows.index import BatchRows
from infra.base.growing import GrowingArray


class Profile:
    """Counts how often rows are used over some batches; a pure function of them."""

    def __init__(self, steps: int, most: int, workers: int, only_worthwhile: bool = True) -> None:
        """only_worthwhile: whether to omit rows that an all-reduce makes more expensive."""
        self._left = steps
        self._most = most
        self._least_uses = steps * worthwhile_uses(workers) if only_worthwhile else 0.0
        self._all_uses = GrowingArray(np.int64)
        self._uses = self._all_uses.first(0)
        """Uses by row number."""

    def count_batch(self, batch: BatchRows) -> I64 | None:
        """Counts a batch. Returns the hot rows, ascending, once enough batches are counted; otherwise None."""
        self._left -= 1
        if self._left == -1:
            chosen = most_frequent(self._uses, self._most, self._least_uses)
            self._all_uses = GrowingArray(np.int64)
            self._uses = self._all_uses.first(0)
            return chosen
        if self._left >= 0:
            self._count(batch)
        return None

    def forget(self, rows: I64) -> None:
        """Discards what was counted of rows whose keys are forgotten."""
        self._uses[rows[rows < self._uses.size]] = 0

    def _count(self, batch: BatchRows) -> None:
        rows = int(batch.rows_U.max(initial=-1)) + 1
        if rows > self._uses.size:
            self._uses = self._all_uses.first(rows)
        self._uses[batch.rows_U] += np.bincount(batch.local_BF.reshape(-1), minlength=batch.rows_U.size)


def most_frequent(uses: I64, most: int, least_uses: float) -> I64:
    """Numbers of the most used rows, ascending; of rows used equally often the lower numbers."""
    (often,) = np.nonzero((uses > 0) & (uses >= least_uses))
    return np.sort(often[np.argsort(-uses[often], kind="stable")[:most]])


def worthwhile_uses(workers: int) -> float:
    """Uses per step from which on all-reducing a row moves no more than pushing and pulling it.

    A ring moves 2(n-1) copies of it. Pushing and pulling moves 2 for each worker that uses it, and of f uses placed at
    random n(1 - (1 - 1/n)^f) workers have one: n - 1 of them if f is ln n / -ln(1 - 1/n), about n ln n.
    """
    return log(workers) / -log1p(-1 / workers) if workers > 1 else 0.0

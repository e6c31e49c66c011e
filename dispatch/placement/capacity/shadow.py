"""What a worker that trained alone would move: a simulation of its cache on a sample of the rows, fed with every batch.

While several workers share rows, most of what they move keeps copies up to date, and says nothing about one worker that
has all rows to itself. So one row in SAMPLED is followed through a cache of one SAMPLED-th of the slots, from which the
longest unused rows leave, those of one step together. What this moves, times SAMPLED, estimates the whole cache.

Legend: U distinct rows of the batch.
"""

import numpy as np

from dispatch.placement.arrays import F64, I64

SAMPLED = 64
"""A power of two; sampling one row in 64 gave an error below 5 % on Criteo and Avazu, one in 16 gave 1 %."""
DAMPING = 0.1
"""Weight of the newest step."""
NEVER = -1
GROWTH = 1.5


class SoleShadow:
    """The cache of a worker that has trained every batch so far."""

    def __init__(self, cache_rows: int) -> None:
        self._room = max(1, cache_rows // SAMPLED)
        self._used_at = np.full(1024, NEVER, np.int64)
        """The step that last used each sampled row."""
        self._held_of: dict[int, int] = {}
        """Held rows by the step that used them last, oldest first."""
        self._held = 0
        self._oldest = 0
        """Rows last used before this step are not held any more."""
        self.rows_a_step = 0.0
        """Whole rows moved per step in the busier direction."""

    def train_batch(self, step: int, rows_U: I64, size_U: F64 | None = None) -> None:
        """Trains the batch of a step, which is later than all before. size_U: see Situation.

        Rows that leave are taken to be as large as those that come, since both are rarely used ones.
        """
        is_sampled_U = (rows_U & (SAMPLED - 1)) == 0
        used = rows_U[is_sampled_U] // SAMPLED
        self._reserve(int(used.max(initial=-1)) + 1)
        last = self._used_at[used]
        steps, counts = np.unique(last[last >= self._oldest], return_counts=True)
        for last_step, count in zip(steps.tolist(), counts.tolist(), strict=True):
            self._held_of[last_step] -= count
        pulled = used.size - int(counts.sum())
        size = 1.0 if size_U is None or not pulled else float(size_U[is_sampled_U][last < self._oldest].mean())
        self._used_at[used] = step
        self._held_of[step] = used.size
        self._held += pulled
        moved = max(pulled, self._evict(step)) * SAMPLED * size
        is_first = len(self._held_of) == 1 and not self.rows_a_step
        self.rows_a_step += (1.0 if is_first else DAMPING) * (moved - self.rows_a_step)

    def _evict(self, step: int) -> int:
        """Evicts rows of the oldest steps until the others fit; returns how many."""
        evicted = 0
        while self._held > self._room and (oldest := next(iter(self._held_of))) != step:
            count = self._held_of.pop(oldest)
            evicted, self._held, self._oldest = evicted + count, self._held - count, oldest + 1
        return evicted

    def _reserve(self, needed: int) -> None:
        if needed > self._used_at.size:
            more = max(needed, int(self._used_at.size * GROWTH)) - self._used_at.size
            self._used_at = np.concatenate((self._used_at, np.full(more, NEVER, np.int64)))

"""Bounds of each worker's elastic capacity, in equal shares of the batch. Loads no kernels.

Legend: n workers.
"""

from dataclasses import dataclass
from math import isfinite

import numpy as np

from dispatch.placement.arrays import F64
from infra.base.errors import ConfigError
from ps.phases import MOST_WORKERS

LEAST_SHARE = 0.0
"""A worker without a lower bound may be parked (dispatch/placement/capacity/participation.py)."""
LARGEST_SHARE = float(MOST_WORKERS)
"""No bound: one worker may train the whole batch."""


@dataclass(frozen=True)
class ShareBounds:
    """Fewest and most equal shares: one number for all workers, or one for each."""

    least: tuple[float, ...] = (LEAST_SHARE,)
    largest: tuple[float, ...] = (LARGEST_SHARE,)

    def of(self, workers: int) -> tuple[F64, F64]:
        """Both bounds for each of that many workers; bounds of another number of workers are
        loosened to one for all.
        """
        least = self.least if len(self.least) == workers else (min(self.least),) * workers
        largest = self.largest if len(self.largest) == workers else (max(self.largest),) * workers
        return np.array(least, np.float64), np.array(largest, np.float64)

    def check(self, workers: int) -> None:
        """Raises ConfigError for bounds that no split of a batch can satisfy."""
        wrong_count = any(len(shares) not in (1, workers) for shares in (self.least, self.largest))
        wrong_value = any(not isfinite(share) or share < 0 for share in (*self.least, *self.largest))
        if wrong_count or wrong_value:
            raise self._refused(workers, "one finite number from 0 on for all workers, or one for each")
        least_n, largest_n = self.of(workers)
        if (least_n > largest_n).any() or least_n.sum() > workers + 1e-9 or largest_n.sum() < workers - 1e-9:
            raise self._refused(
                workers,
                f"each least share at most the largest, and {workers} equal shares between the sums, which are "
                f"{least_n.sum():g} and {largest_n.sum():g}",
            )

    def _refused(self, workers: int, expected: str) -> ConfigError:
        return ConfigError(
            f"bounds of elastic capacity cannot hold the batch; got least shares {self.least} and largest shares "
            f"{self.largest} for {workers} workers; expected {expected}; correct dispatch.least_share or "
            f"dispatch.largest_share"
        )

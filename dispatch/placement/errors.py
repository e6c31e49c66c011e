"""PlacementError
├── Infeasible       capacities that cannot hold the batch, or are not capacities at all
├── BadCost          a cost that is NaN, infinite, or of the wrong shape
├── NoGpu            the GPU solver was asked for where it cannot run
├── CacheTooSmall    a worker's cache cannot hold the rows of one micro-batch
└── DuplicateKeys    rows that were saved have a key in common
"""

from infra.base.errors import ConfigError, FreshetError


class PlacementError(FreshetError):
    """Samples cannot be placed on workers."""


class Infeasible(PlacementError, ValueError):
    """Capacities cannot hold the batch, or are not valid capacities."""


class BadCost(PlacementError, ValueError):
    """A cost is NaN, infinite, or the matrix has the wrong shape."""


class NoGpu(PlacementError, ConfigError):
    """The GPU solver was requested, but there is no GPU, or cupy is not installed."""


class CacheTooSmall(PlacementError, ConfigError):
    """A worker's cache cannot hold the rows of one micro-batch; a retry would not help."""


class DuplicateKeys(PlacementError):
    """Two rows of an index that is restored have the same key."""

"""Which embedding columns rows have kept, if all rows have dropped the others.

Legend: D embedding columns.
"""

import numpy as np
from numpy.typing import NDArray

from ps.config import RowConfig

KeptColumns = tuple[int, ...]
"""The embedding columns that rows still have, ascending, as many of each chunk; empty: none was dropped."""


def may_keep(config: RowConfig, kept: KeptColumns) -> bool:
    """Whether rows of some settings can keep just these columns, which are some: they are ascending, and as many of
    each chunk, and each column has an accumulator.
    """
    if not config.chunks or config.optimizer != "adagrad" or list(kept) != sorted(set(kept)):
        return False
    if kept[0] < 0 or kept[-1] >= config.dim:
        return False
    by_chunk = np.bincount(np.array(kept) // (config.dim // config.chunks), minlength=config.chunks)
    return bool(by_chunk.min() == by_chunk.max())


def is_kept(dim: int, kept: KeptColumns) -> NDArray[np.bool_]:
    """Whether rows still have each of the embedding columns."""
    is_kept_D = np.full(dim, not kept)
    is_kept_D[list(kept)] = True
    return is_kept_D

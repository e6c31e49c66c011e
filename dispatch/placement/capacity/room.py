"""Whether caches have room for a batch: known from the settings, so it is checked before anything starts."""

import numpy as np

from dispatch.placement.arrays import I64
from dispatch.placement.capacity.bounds import ShareBounds
from dispatch.placement.capacity.elastic import bounds
from dispatch.placement.errors import CacheTooSmall, Infeasible


def check_room(
    cache_rows: int, batch: int, workers: int, fields: int, shares: ShareBounds | None, hot_share: float
) -> None:
    """Raises an error for caches that might not hold a micro-batch, next to a hot set if there is one; shares: as
    below.
    """
    check_cache(cache_rows, batch, workers, fields, shares)
    check_hot_set(hot_share, cache_rows, needed_rows(batch, workers, fields))


def equal_capacities(samples: int, workers: int) -> I64:
    """The smallest equal capacity that holds the batch."""
    return np.full(workers, -(-samples // workers), np.int64)


def needed_rows(batch: int, workers: int, fields: int) -> int:
    """Most rows that a micro-batch may use."""
    return int(equal_capacities(batch, workers)[0]) * fields


def check_cache(cache_rows: int, batch: int, workers: int, fields: int, shares: ShareBounds | None = None) -> None:
    """Raises an error for a cache that might not hold a micro-batch, before anything starts.

    Elastic capacities stay within what the caches hold; if bounds are given, it is also checked that there is room for
    the batch within them.
    """
    needed = needed_rows(batch, workers, fields)
    if cache_rows < needed:
        raise CacheTooSmall(
            f"cache of {cache_rows} rows cannot hold a micro-batch; {batch} samples over {workers} workers with "
            f"{fields} keys each may use {needed} rows; expected a slot for each; raise dispatch.cache_rows or lower "
            f"stream.batch"
        )
    if shares is not None:
        try:
            bounds(batch, np.full(workers, cache_rows // fields), *shares.of(workers))
        except Infeasible as error:
            raise CacheTooSmall(str(error)) from error


def hot_rows(share: float, cache_rows: int) -> int:
    """Slots of each cache that are reserved for a hot set with this share; 0 for a share of 0."""
    rows = int(share * cache_rows)
    if share and not rows:
        raise CacheTooSmall(
            f"hot set is empty; its share is {share:g} of {cache_rows} cached rows; expected one row at least; raise "
            f"dispatch.cache_rows or the share in dispatch.policy"
        )
    return rows


def check_hot_set(share: float, cache_rows: int, needed: int) -> None:
    """Raises an error for a hot set that might leave no room for a micro-batch of that many rows, before anything
    starts.
    """
    hot = hot_rows(share, cache_rows)
    if hot and cache_rows - hot < needed:
        raise CacheTooSmall(
            f"hot set is too large; its {hot} rows leave {cache_rows - hot} of {cache_rows} slots; expected room for "
            f"the {needed} rows that a micro-batch may use; lower the share in dispatch.policy from {share:g} to below "
            f"{1 - needed / cache_rows:.3g}, raise dispatch.cache_rows or lower stream.batch"
        )

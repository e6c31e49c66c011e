"""Keys and faults of packed samples, each in one pass over them; their plain forms are in ``ingest/crosses.py`` and in
the tests.

Legend: B samples, E keys of tables, F keys of a sample with those of crosses, C crosses, M their most members, N dense
floats.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from infra.base.kernels import kernel, range_of, ranges_for, threaded
from infra.base.mixing import mix
from ingest.columns import MAX_TIME
from ingest.keys import table_seed
from ingest.schema import Schema

NOBODY = -1


class CrossTerms(NamedTuple):
    """The crosses of a schema."""

    seed_C: NDArray[np.uint64]
    place_CM: NDArray[np.int64]
    """Places of their members among the keys of tables; NOBODY after the last one."""


@lru_cache(maxsize=8)
def terms_of(schema: Schema) -> CrossTerms:
    """The crosses of a schema; cached, because every read needs them."""
    members = schema.cross_places
    place_CM = np.full((len(members), max(map(len, members), default=0)), NOBODY, np.int64)
    for cross, places in enumerate(members):
        place_CM[cross, : len(places)] = places
    return CrossTerms(np.array([table_seed(name) for name in schema.cross_names], np.uint64), place_CM)


def add_crosses(keys_BE: NDArray[np.uint64], schema: Schema) -> NDArray[np.uint64]:
    """The keys of samples with those of the schema's crosses."""
    if not schema.crosses:
        return keys_BE
    keys_BF = np.empty((len(keys_BE), schema.fields), np.uint64)
    fill_keys(ranges_for(len(keys_BE)), keys_BE, *terms_of(schema), keys_BF)
    return keys_BF


@threaded
def fill_keys(
    ranges: int,
    keys_BE: NDArray[np.uint64],
    seed_C: NDArray[np.uint64],
    place_CM: NDArray[np.int64],
    keys_BF: NDArray[np.uint64],
) -> None:
    """One range of samples at a time."""
    for k in prange(ranges):
        _fill_range(k, ranges, keys_BE, seed_C, place_CM, keys_BF)


@kernel
def _fill_range(
    k: int,
    ranges: int,
    keys_BE: NDArray[np.uint64],
    seed_C: NDArray[np.uint64],
    place_CM: NDArray[np.int64],
    keys_BF: NDArray[np.uint64],
) -> None:
    singles = keys_BE.shape[1]
    first, end = range_of(k, ranges, keys_BE.shape[0])
    for b in range(first, end):
        keys_BF[b, :singles] = keys_BE[b]
        for c in range(seed_C.size):
            crossed = seed_C[c]
            for place in place_CM[c]:
                if place != NOBODY:
                    crossed = mix(crossed ^ keys_BE[b, place])
            keys_BF[b, singles + c] = crossed


@kernel
def are_good(
    labels_B: NDArray[np.float32],
    times_B: NDArray[np.float64],
    dense_BN: NDArray[np.float32],
    low_N: NDArray[np.float32],
    high_N: NDArray[np.float32],
) -> NDArray[np.bool_]:
    """Which samples have a label, a time and dense floats that are allowed."""
    good_B = np.empty(labels_B.size, np.bool_)
    for b in range(labels_B.size):
        good = (labels_B[b] == 0) | (labels_B[b] == 1)
        good &= (times_B[b] >= 0) & (times_B[b] < MAX_TIME)
        for n in range(low_N.size):
            good &= (dense_BN[b, n] >= low_N[n]) & (dense_BN[b, n] <= high_N[n])
        good_B[b] = good
    return good_B


def warm_up() -> None:
    """Compiles these kernels."""
    keys_BE = np.empty((0, 1), np.uint64)
    fill_keys(1, keys_BE, np.empty(0, np.uint64), np.empty((0, 0), np.int64), keys_BE)
    none = np.empty(0, np.float32)
    are_good(none, np.empty(0), none.reshape(0, 0), none, none)

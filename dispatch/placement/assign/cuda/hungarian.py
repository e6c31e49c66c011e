"""The papers' Opt, as a baseline: the classical Hungarian method on the matrix with copied columns, on a GPU.

Legend: k samples, n workers, s = places of all workers.

The matrix is s × s: a column for every place of every worker and, if there are more places than samples, rows of zero
cost. Rows and columns are reduced by their minima; then, phase by phase, trees of zeros grow from all unmatched rows,
the duals shift when no zero is left outside the cover, and every tree that reached a free column matches along its
path. It is simple, not fast: it is here to be compared with dispatch/placement/assign/cuda/transport.py. It guarantees
the same optimum.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dispatch.placement.arrays import I32
from dispatch.placement.assign.cuda.transport import compile_kernels, load_cupy
from dispatch.placement.assign.solver import check_costs, checked_capacities
from dispatch.placement.errors import Infeasible

MOST_PLACES = 16_384
"""Most places; an expanded matrix of this width takes 2 GiB."""


def hungarian_cuda(cost_kn: ArrayLike, capacity_n: ArrayLike) -> I32:
    """The worker of each sample such that no capacity is exceeded and the summed cost is least."""
    cost = np.ascontiguousarray(cost_kn, dtype=np.float64)
    capacity = np.minimum(checked_capacities(cost.shape, capacity_n), len(cost))
    check_costs(cost)
    if len(cost) == 0:
        return np.empty(0, dtype=np.int32)
    places = int(capacity.sum())
    if places > MOST_PLACES:
        raise Infeasible(
            f"expanded matrix is too large; it has {places} places; expected at most {MOST_PLACES}; use the transport "
            f"solver, which does not copy columns"
        )
    cupy = load_cupy()
    worker_s = np.repeat(np.arange(len(capacity)), capacity)
    expanded_ss = cupy.zeros((places, places))
    expanded_ss[: len(cost)] = cupy.asarray(cost)[:, cupy.asarray(worker_s)]
    column_s: I32 = _match(cupy, expanded_ss).get()
    return worker_s[column_s[: len(cost)]].astype(np.int32)


def _match(cupy: Any, cost_ss: Any) -> Any:
    """The column of every row."""
    kernels = compile_kernels(cupy, "hungarian.cu", "begin", "extend", "cover", "flip")
    size = len(cost_ss)
    wide = (-(-size // 256),)
    block = (256,)
    s = np.int32(size)
    u = cost_ss.min(axis=1)
    v = (cost_ss - u[:, None]).min(axis=0)
    slack = cupy.empty(size)
    row_of, column_of = (cupy.full(size, -1, np.int32) for _ in range(2))
    in_row, in_column, origin, claim, fresh, roots = (cupy.empty(size, np.int32) for _ in range(6))
    state = cupy.zeros(2, np.int32)
    while bool((row_of < 0).any()):
        state.fill(0)
        kernels["begin"](wide, block, (s, column_of, in_row, in_column, slack, origin, claim, fresh, state))
        reached = 0
        while not reached:
            kernels["extend"](wide, block, (s, cost_ss, u, v, in_column, fresh, state, slack, origin))
            kernels["cover"]((1,), (1024,), (s, row_of, u, v, in_row, in_column, slack, fresh, state))
            reached = int(state[0])
        kernels["flip"]((1,), (1024,), (s, row_of, column_of, in_column, origin, claim, roots))
    return column_of

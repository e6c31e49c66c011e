"""HybridDis: the samples where a wrong worker would hurt most are assigned exactly, the rest greedily.

Legend: B samples, n workers.

Samples are ordered by a criterion, by default regret (second least cost − least cost), the highest first. A share alpha
of every worker's capacity is filled by Opt with the first samples; the rest go, in the same order, to Heu. Rounding
down per worker keeps every split feasible. Guarantees: capacities hold; alpha 1 is Opt, alpha 0 is Heu; equal input
gives equal output, equal samples in batch order.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dispatch.assign.solver import check_costs, solve_transport
from dispatch.errors import Infeasible
from infra.kernels import kernel

Criterion = Literal["min2-min", "min3-min", "min3-min2", "mean"]
Solver = Callable[[NDArray[np.float64], NDArray[np.int64]], NDArray[np.int32]]
"""An exact solver: cost [k, n] and capacities [n] to a worker per sample."""


def assign_hybrid(
    cost_Bn: NDArray[np.float64],
    capacity_n: NDArray[np.int64],
    alpha: float,
    criterion: Criterion = "min2-min",
    solve: Solver = solve_transport,
) -> NDArray[np.int32]:
    """A worker per sample: Opt on a share alpha, Heu on the rest."""
    samples = cost_Bn.shape[0]
    share_n, exact = opt_share(samples, capacity_n, alpha)
    if exact == samples:
        return solve(cost_Bn, capacity_n)
    check_costs(cost_Bn)
    order_B = order_by(cost_Bn, criterion)
    at_B = np.empty(samples, dtype=np.int32)
    left_n = capacity_n.copy()
    if exact:
        at_B[order_B[:exact]] = solve(cost_Bn[order_B[:exact]], share_n)
        left_n -= np.bincount(at_B[order_B[:exact]], minlength=len(capacity_n))
    assign_heu(cost_Bn, order_B[exact:], left_n, at_B)
    return at_B


def opt_share(samples: int, capacity_n: NDArray[np.int64], alpha: float) -> tuple[NDArray[np.int64], int]:
    """Opt's places per worker, and how many samples it gets; both are rounded down, so that Heu is feasible too."""
    # the tiny addend keeps 0.29 · 100 from becoming 28
    share_n = np.floor(capacity_n * alpha + 1e-9).astype(np.int64)
    return share_n, min(int(samples * alpha + 1e-9), int(share_n.sum()))


def order_by(cost_Bn: NDArray[np.float64], criterion: Criterion = "min2-min") -> NDArray[np.int64]:
    """Samples by the criterion, highest first, equal ones in batch order."""
    if criterion == "mean":
        score_B = cost_Bn.mean(axis=1)
    else:
        minima_B3 = _three_minima(np.ascontiguousarray(cost_Bn))
        low, high = {"min2-min": (0, 1), "min3-min": (0, 2), "min3-min2": (1, 2)}[criterion]
        score_B = minima_B3[:, high] - minima_B3[:, low]
    return np.argsort(-score_B, kind="stable")


def order_by_reference(cost_Bn: NDArray[np.float64], criterion: Criterion = "min2-min") -> NDArray[np.int64]:
    """The same by sorting every row."""
    sorted_Bn = np.sort(cost_Bn, axis=1)
    last = cost_Bn.shape[1] - 1
    first, second, third = sorted_Bn[:, 0], sorted_Bn[:, min(1, last)], sorted_Bn[:, min(2, last)]
    scores = {
        "min2-min": second - first,
        "min3-min": third - first,
        "min3-min2": third - second,
        "mean": cost_Bn.mean(axis=1),
    }
    return np.array(sorted(range(len(cost_Bn)), key=lambda i: -scores[criterion][i]), dtype=np.int64)


def assign_heu(
    cost_Bn: NDArray[np.float64], order_k: NDArray[np.int64], left_n: NDArray[np.int64], at_B: NDArray[np.int32]
) -> None:
    """Heu: the samples of order_k in turn, each to its cheapest worker with room; fills at_B and lowers left_n."""
    if int(left_n.sum()) < len(order_k) or (left_n < 0).any():
        raise Infeasible(
            f"Cannot assign {len(order_k)} samples: the places left are {left_n.tolist()}; expected none negative and "
            f"at least one per sample. Raise a capacity or shrink the batch."
        )
    _heu(np.ascontiguousarray(cost_Bn), order_k, left_n, at_B)


def assign_heu_reference(
    cost_Bn: NDArray[np.float64], order_k: NDArray[np.int64], left_n: NDArray[np.int64], at_B: NDArray[np.int32]
) -> None:
    """The same in plain numpy."""
    for i in order_k:
        worker = np.where(left_n > 0, cost_Bn[i], np.inf).argmin()
        at_B[i] = worker
        left_n[worker] -= 1


@kernel
def _three_minima(cost_Bn: NDArray[np.float64]) -> NDArray[np.float64]:
    """The three least costs of each sample, ascending; with fewer workers the last one is repeated."""
    samples, workers = cost_Bn.shape
    minima_B3 = np.empty((samples, 3), dtype=np.float64)
    for i in range(samples):
        first = second = third = np.inf
        for j in range(workers):
            cost = cost_Bn[i, j]
            if cost < first:
                first, second, third = cost, first, second
            elif cost < second:
                second, third = cost, second
            elif cost < third:
                third = cost
        minima_B3[i, 0] = first
        minima_B3[i, 1] = second if workers > 1 else first
        minima_B3[i, 2] = third if workers > 2 else minima_B3[i, 1]
    return minima_B3


@kernel
def _heu(
    cost_Bn: NDArray[np.float64], order_k: NDArray[np.int64], left_n: NDArray[np.int64], at_B: NDArray[np.int32]
) -> None:
    workers = cost_Bn.shape[1]
    for i in order_k:
        best, least = -1, np.inf
        for j in range(workers):
            if left_n[j] > 0 and cost_Bn[i, j] < least:
                best, least = j, cost_Bn[i, j]
        at_B[i] = best
        left_n[best] -= 1

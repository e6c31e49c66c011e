"""HybridDis, esd's assignment: exact for the samples that a wrong worker would make dearest, greedy for the rest.

Legend: B samples, n workers.

Samples are ordered by a criterion, by default regret (second least cost − least cost), the highest first.

* ``assign_hybrid``: Heu gives every sample a worker; the share alpha that comes first is then assigned again by Opt,
  within the places that the others leave. The cost never rises with alpha: a larger share may do all that a smaller one
  does.
* ``assign_literal``, as published: a share alpha of every worker's capacity is filled by Opt with the first samples,
  what is left of it by Heu with the others. Rounding down per worker keeps every split feasible. Holding Opt to a share
  of each worker's places can make it dearer than Heu alone.

Guarantees of both: capacities hold; alpha 1 is Opt, alpha 0 is Heu; equal input gives equal output, equal samples in
batch order.
"""

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import numpy as np

from dispatch.arrays import F64, I32, I64
from dispatch.assign.backend import CPU, Opt
from dispatch.assign.choices import Criterion
from dispatch.assign.cost import cost_matrix
from dispatch.assign.pace import OptPace
from dispatch.assign.situation import Assignment, Situation, check_capacities
from dispatch.assign.solver import Solve, check_costs, solve_transport
from dispatch.errors import Infeasible
from infra.kernels import kernel

Mix = Callable[[F64, I64, float, Criterion, Solve], I32]
"""one of the two ways to mix Opt and Heu"""


def assign_hybrid(
    cost_Bn: F64,
    capacity_n: I64,
    alpha: float,
    criterion: Criterion = "min2-min",
    solve: Solve = solve_transport,
) -> I32:
    """A worker per sample: Heu for all, then Opt for a share alpha of them."""
    samples = cost_Bn.shape[0]
    exact = share_of(samples, alpha)
    if exact == samples:
        return solve(cost_Bn, capacity_n)
    check_costs(cost_Bn)
    order_B = order_by(cost_Bn, criterion)
    at_B, left_n = np.empty(samples, dtype=np.int32), capacity_n.copy()
    assign_heu(cost_Bn, order_B, left_n, at_B)
    if exact:
        again_k = order_B[:exact]
        places_n = left_n + np.bincount(at_B[again_k], minlength=len(capacity_n))
        at_B[again_k] = solve(cost_Bn[again_k], places_n)
    return at_B


def assign_literal(
    cost_Bn: F64,
    capacity_n: I64,
    alpha: float,
    criterion: Criterion = "min2-min",
    solve: Solve = solve_transport,
) -> I32:
    """A worker per sample: Opt on a share alpha of every worker's places, Heu on the rest."""
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


class Esd:
    """Alpha 1: all samples by Opt; alpha 0: all by Heu; between: the samples that matter most by Opt."""

    def __init__(
        self,
        criterion: Criterion = "min2-min",
        opt: Opt = CPU,
        mix: Mix = assign_hybrid,
        parts_hold: bool = True,
    ) -> None:
        self._parts_hold = parts_hold
        self._criterion: Criterion = criterion
        self._opt = opt
        self._mix = mix
        self._pace = OptPace()

    def assign(self, situation: Situation) -> Assignment:
        check_capacities(situation)
        situation = replace(situation, parts_hold=self._parts_hold)
        alpha, began = self._pace.affordable(situation.alpha, situation), perf_counter()
        if alpha == 1.0:
            at_B = self._opt.assign(situation)
        else:
            at_B = self._mix(cost_matrix(situation), situation.capacity_n, alpha, self._criterion, self._opt.solve)
        self._pace.learn(alpha, situation, perf_counter() - began)
        return Assignment(at_B, was_cut=alpha < situation.alpha)


def share_of(samples: int, alpha: float) -> int:
    """Whole samples in a share; the tiny addend keeps 0.29 · 100 from becoming 28."""
    return int(samples * alpha + 1e-9)


def opt_share(samples: int, capacity_n: I64, alpha: float) -> tuple[I64, int]:
    """Opt's places per worker, and how many samples it gets; both are rounded down, so that Heu is feasible too."""
    share_n = np.array([share_of(int(capacity), alpha) for capacity in capacity_n], dtype=np.int64)
    return share_n, min(share_of(samples, alpha), int(share_n.sum()))


def order_by(cost_Bn: F64, criterion: Criterion = "min2-min") -> I64:
    """Samples by the criterion, highest first, equal ones in batch order."""
    if criterion == "mean":
        score_B = cost_Bn.mean(axis=1)
    else:
        minima_B3 = _three_minima(np.ascontiguousarray(cost_Bn))
        low, high = {"min2-min": (0, 1), "min3-min": (0, 2), "min3-min2": (1, 2)}[criterion]
        score_B = minima_B3[:, high] - minima_B3[:, low]
    return np.argsort(-score_B, kind="stable")


def order_by_reference(cost_Bn: F64, criterion: Criterion = "min2-min") -> I64:
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


def assign_heu(cost_Bn: F64, order_k: I64, left_n: I64, at_B: I32) -> None:
    """Heu: the samples of order_k in turn, each to its cheapest worker with room; fills at_B and lowers left_n."""
    if int(left_n.sum()) < len(order_k) or (left_n < 0).any():
        raise Infeasible(
            f"cannot assign {len(order_k)} samples; the places left are {left_n.tolist()}; expected none negative and "
            f"at least one per sample; raise a capacity or shrink the batch"
        )
    _heu(np.ascontiguousarray(cost_Bn), order_k, left_n, at_B)


def assign_heu_reference(cost_Bn: F64, order_k: I64, left_n: I64, at_B: I32) -> None:
    """The same in plain numpy."""
    for i in order_k:
        worker = np.where(left_n > 0, cost_Bn[i], np.inf).argmin()
        at_B[i] = worker
        left_n[worker] -= 1


@kernel
def _three_minima(cost_Bn: F64) -> F64:
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
def _heu(cost_Bn: F64, order_k: I64, left_n: I64, at_B: I32) -> None:
    workers = cost_Bn.shape[1]
    for i in order_k:
        best, least = -1, np.inf
        for j in range(workers):
            if left_n[j] > 0 and cost_Bn[i, j] < least:
                best, least = j, cost_Bn[i, j]
        at_B[i] = best
        left_n[best] -= 1

"""HybridDis, esd's assignment: greedy if the choice is clear, exact if it is not.

Legend: B samples, n workers, k samples that Opt assigns.

Samples are ordered by a criterion, by default regret (second least cost − least cost), the highest first.

* ``assign_hybrid``: Opt on a few samples finds the value of a place at each worker, its price. By cost + price most
  samples have a clear favourite: Heu places them, the clearest first. Those with the least regret, two thirds of the
  share alpha, are left to Opt, with the places that are left; with more of them it takes as long as Opt for all, which
  is alpha 1. Above 0 the cost never rises with alpha: a larger share may do all that a smaller one does. Without prices
  Heu fills the best workers with whichever samples come first, and a small share of exact solving cannot repair that.
* ``assign_literal``, as published: a share alpha of every worker's capacity is filled by Opt with the first samples,
  the rest of it by Heu with the others. Rounding down per worker keeps every split feasible. Restricting Opt to a share
  of each worker's places can make it more expensive than Heu alone.

Guarantees of both: capacities hold; alpha 1 is Opt, alpha 0 is Heu without prices; equal input gives equal output,
equal samples in batch order.
"""

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import numpy as np

from dispatch.placement.arrays import F64, I32, I64
from dispatch.placement.assign.backend import CPU, Opt
from dispatch.placement.assign.choices import Criterion
from dispatch.placement.assign.pace import OptPace
from dispatch.placement.assign.situation import Assignment, Situation, check_capacities
from dispatch.placement.assign.solver import SolveAgain, check_costs, checked_capacities, coarse_prices, solve_again
from dispatch.placement.errors import Infeasible
from infra.base.kernels import kernel

Mix = Callable[[F64, I64, float, Criterion, SolveAgain], I32]
"""One of the two ways to combine Opt and Heu."""
RANKS = 4096
"""Number of ranks that regrets are rounded to, so that they can be sorted by counting."""
MOST_UNCLEAR = 2 / 3
"""Share of the samples that Opt gets as alpha approaches 1."""


def assign_hybrid(
    cost_Bn: F64,
    capacity_n: I64,
    alpha: float,
    criterion: Criterion = "min2-min",
    again: SolveAgain = solve_again,
) -> I32:
    """A worker per sample: Opt for those with the least regret, ⅔ of the share alpha; Heu for the others."""
    cost_Bn = np.ascontiguousarray(cost_Bn)
    samples = cost_Bn.shape[0]
    exact = samples if alpha == 1.0 else share_of(samples, MOST_UNCLEAR * alpha)
    check_costs(cost_Bn)
    at_B = np.empty(samples, dtype=np.int32)
    left_n = checked_capacities(cost_Bn.shape, capacity_n)
    if samples == 0:
        return at_B
    if exact == 0:
        price_n = np.zeros(len(left_n))
        _place_clear(cost_Bn, price_n, _scores(cost_Bn, criterion, price_n), 0, left_n, at_B)
        return at_B
    price_n = coarse_prices(cost_Bn, left_n)
    unclear_k, cost_kn = _place_clear(cost_Bn, price_n, _scores(cost_Bn, criterion, price_n), exact, left_n, at_B)
    at_B[unclear_k] = again(cost_kn, left_n, price_n)
    return at_B


def assign_literal(
    cost_Bn: F64,
    capacity_n: I64,
    alpha: float,
    criterion: Criterion = "min2-min",
    again: SolveAgain = solve_again,
) -> I32:
    """A worker per sample: Opt on a share alpha of every worker's places, Heu on the rest."""
    samples = cost_Bn.shape[0]
    share_n, exact = opt_share(samples, capacity_n, alpha)
    check_costs(cost_Bn)
    order_B = order_by(cost_Bn, criterion)
    at_B = np.empty(samples, dtype=np.int32)
    left_n = capacity_n.copy()
    if exact:
        first_k = order_B[:exact]
        at_B[first_k] = again(cost_Bn[first_k], share_n, coarse_prices(cost_Bn[first_k], share_n))
        left_n -= np.bincount(at_B[first_k], minlength=len(capacity_n))
    assign_heu(cost_Bn, order_B[exact:], left_n, at_B)
    return at_B


class Esd:
    """Alpha 1: all samples by Opt; alpha 0: all by Heu; between: those without a clear favourite by Opt."""

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
        alpha = self._pace.affordable(situation.alpha, situation)
        began = perf_counter()
        if alpha == 1.0:
            at_B = self._opt.assign(situation)
        else:
            cost_Bn = self._opt.costs(situation)
            at_B = self._mix(cost_Bn, situation.capacity_n, alpha, self._criterion, self._opt.again)
        self._pace.learn(alpha, situation, perf_counter() - began)
        return Assignment(at_B, was_shortened=alpha < situation.alpha)


def share_of(samples: int, alpha: float) -> int:
    """Whole samples in a share; the tiny addend keeps 0.29 · 100 from becoming 28."""
    return int(samples * alpha + 1e-9)


def opt_share(samples: int, capacity_n: I64, alpha: float) -> tuple[I64, int]:
    """Opt's places per worker, and its number of samples; both are rounded down, so that Heu is feasible, too."""
    share_n = np.array([share_of(int(capacity), alpha) for capacity in capacity_n], dtype=np.int64)
    return share_n, min(share_of(samples, alpha), int(share_n.sum()))


def order_by(cost_Bn: F64, criterion: Criterion = "min2-min") -> I64:
    """Samples by the criterion, highest first, equal ones in batch order."""
    return np.argsort(-_scores(np.ascontiguousarray(cost_Bn), criterion, np.zeros(cost_Bn.shape[1])), kind="stable")


def _scores(cost_Bn: F64, criterion: Criterion, price_n: F64) -> F64:
    """Scores by cost + price."""
    if criterion == "mean":
        mean_B: F64 = cost_Bn.mean(axis=1)
        return mean_B
    score_B: F64 = _regrets(cost_Bn, price_n, *{"min2-min": (0, 1), "min3-min": (0, 2), "min3-min2": (1, 2)}[criterion])
    return score_B


def order_by_reference(cost_Bn: F64, criterion: Criterion = "min2-min") -> I64:
    """The same, by sorting every row."""
    sorted_Bn = np.sort(cost_Bn, axis=1)
    last = cost_Bn.shape[1] - 1
    first = sorted_Bn[:, 0]
    second = sorted_Bn[:, min(1, last)]
    third = sorted_Bn[:, min(2, last)]
    scores = {
        "min2-min": second - first,
        "min3-min": third - first,
        "min3-min2": third - second,
        "mean": cost_Bn.mean(axis=1),
    }
    return np.array(sorted(range(len(cost_Bn)), key=lambda i: -scores[criterion][i]), dtype=np.int64)


def assign_heu(cost_Bn: F64, order_k: I64, left_n: I64, at_B: I32) -> None:
    """Heu: places the samples of order_k in turn, each at its cheapest worker with room; fills at_B
    and lowers left_n.
    """
    if int(left_n.sum()) < len(order_k) or (left_n < 0).any():
        raise Infeasible(
            f"cannot assign {len(order_k)} samples; the places left are {left_n.tolist()}; expected none negative and "
            f"at least one per sample; raise a capacity or shrink the batch"
        )
    _heu(np.ascontiguousarray(cost_Bn), np.zeros(cost_Bn.shape[1]), order_k, left_n, at_B)


def assign_heu_reference(cost_Bn: F64, order_k: I64, left_n: I64, at_B: I32) -> None:
    """The same in plain numpy."""
    for i in order_k:
        worker = np.where(left_n > 0, cost_Bn[i], np.inf).argmin()
        at_B[i] = worker
        left_n[worker] -= 1


def rank_reference(score_B: F64) -> I64:
    """Samples by score, highest first, rounded to one of RANKS parts of the range; equal ones in batch order."""
    scale = (RANKS - 1) / (score_B.max() - score_B.min() or 1.0)
    return np.argsort(((score_B.max() - score_B) * scale).astype(np.int64), kind="stable")


@kernel
def rank(score_B: F64) -> I64:
    """The same, by counting."""
    least = score_B.min()
    most = score_B.max()
    scale = (RANKS - 1) / (most - least) if most > least else 0.0
    first = np.zeros(RANKS + 1, dtype=np.int64)
    for i in range(score_B.shape[0]):
        first[np.int64((most - score_B[i]) * scale) + 1] += 1
    for each in range(RANKS):
        first[each + 1] += first[each]
    order_B = np.empty(score_B.shape[0], dtype=np.int64)
    for i in range(score_B.shape[0]):
        of = np.int64((most - score_B[i]) * scale)
        order_B[first[of]] = i
        first[of] += 1
    return order_B


@kernel
def _regrets(cost_Bn: F64, price_n: F64, low: int, high: int) -> F64:
    """For each sample, the difference of two of its three least costs + prices; with fewer workers the last is
    repeated.
    """
    samples, workers = cost_Bn.shape
    regret_B = np.empty(samples, dtype=np.float64)
    minima_3 = np.empty(3, dtype=np.float64)
    for i in range(samples):
        first = second = third = np.inf
        for j in range(workers):
            cost = cost_Bn[i, j] + price_n[j]
            if cost < first:
                first, second, third = cost, first, second
            elif cost < second:
                second, third = cost, second
            elif cost < third:
                third = cost
        minima_3[0] = first
        minima_3[1] = second if workers > 1 else first
        minima_3[2] = third if workers > 2 else minima_3[1]
        regret_B[i] = minima_3[high] - minima_3[low]
    return regret_B


@kernel
def _place_clear(cost_Bn: F64, price_n: F64, score_B: F64, exact: int, left_n: I64, at_B: I32) -> tuple[I64, F64]:
    """Heu for all samples except ``exact`` ones with the least scores; returns those and their costs."""
    order_B = rank(score_B)
    samples, workers = cost_Bn.shape
    _heu(cost_Bn, price_n, order_B[: samples - exact], left_n, at_B)
    unclear_k = order_B[samples - exact :]
    cost_kn = np.empty((exact, workers), dtype=np.float64)
    for k in range(exact):
        cost_kn[k] = cost_Bn[unclear_k[k]]
    return unclear_k, cost_kn


@kernel
def _heu(cost_Bn: F64, price_n: F64, order_k: I64, left_n: I64, at_B: I32) -> None:
    """Heu by cost + price."""
    workers = cost_Bn.shape[1]
    for i in order_k:
        best = -1
        least = np.inf
        for j in range(workers):
            if left_n[j] > 0 and cost_Bn[i, j] + price_n[j] < least:
                best = j
                least = cost_Bn[i, j] + price_n[j]
        at_B[i] = best
        left_n[best] -= 1

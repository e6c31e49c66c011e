"""Opt: the cheapest assignment of samples to workers under capacities, exactly.

Legend: k samples, n workers.

Written as a transportation problem: n sinks with capacities instead of the papers' m·n copied columns. Each worker has
a price; every sample is placed where cost + price is least, and samples then move along shortest chains of workers from
over-full to under-full ones (successive shortest paths with potentials) until all capacities hold. Three things keep it
fast for many workers:

* Prices are first found on every 4th, 16th, … sample with capacities scaled alike, so that few moves remain.
* The best sample to move from a to b comes from a short list per ordered pair
  (dispatch/placement/assign/shortlists.py).
* A search stops at the first under-full worker, and its chain is reused while the samples are tied.

Places that nobody needs (capacities may add up to more than k) are `idle`: like samples that cost nothing anywhere.

Guarantees: the total cost is the least possible, up to float64 rounding; equal input gives equal output; the GIL is
released.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from dispatch.placement.arrays import F64, I32, I64, Bool
from dispatch.placement.assign.levels import COARSEN, level_places, level_strides
from dispatch.placement.assign.shortlists import Seats, Shortlists, empty_shortlists, move, refresh, seat
from dispatch.placement.errors import BadCost, Infeasible
from infra.base.kernels import kernel

PRICING_SAMPLES = 8
"""Samples per worker by which prices are found before the solver runs."""
LARGEST_COST = 1e100
"""Beyond this, sums and differences of costs could overflow."""

Solve = Callable[[F64, I64], I32]
"""An exact solver: cost [k, n] and capacities [n] to a worker per sample."""
SolveAgain = Callable[[F64, I64, F64], I32]
"""The same with the prices of a similar problem, which it may start from and may replace."""


def solve_transport(cost_kn: ArrayLike, capacity_n: ArrayLike) -> I32:
    """The worker of each sample such that no capacity is exceeded and the summed cost is least."""
    cost = np.ascontiguousarray(cost_kn, dtype=np.float64)
    capacity = checked_capacities(cost.shape, capacity_n)
    if cost.shape[0] == 0:
        return np.empty(0, dtype=np.int32)
    check_costs(cost)
    return _solve(cost, capacity, np.zeros(cost.shape[1]))


def solve_again(cost_kn: F64, capacity_n: I64, price_n: F64) -> I32:
    """The same, starting from the prices of a similar problem, which are replaced by the new ones. Costs must be
    finite.
    """
    at_k: I32 = _solve_level(cost_kn, np.minimum(capacity_n, cost_kn.shape[0]), price_n)
    return at_k


def check_costs(cost_kn: F64) -> None:
    """Raises BadCost unless every cost is a finite number of sane size."""
    if not _is_usable(cost_kn):
        sample, worker = (int(x) for x in np.argwhere(~(np.abs(cost_kn) <= LARGEST_COST))[0])
        raise BadCost(
            f"cannot assign samples; the cost of sample {sample} on worker {worker} is {cost_kn[sample, worker]}; "
            f"expected finite costs of at most {LARGEST_COST:g}; check the link costs that the matrix was built from"
        )


def checked_capacities(shape: tuple[int, ...], capacity_n: ArrayLike) -> I64:
    """Raises BadCost or Infeasible unless the capacities fit a matrix of this shape and hold all samples."""
    given = np.asarray(capacity_n)
    if len(shape) != 2 or given.shape != shape[1:] or shape[1] == 0:
        raise BadCost(
            f"cannot assign samples; the cost matrix has shape {shape} and capacities {given.shape}; expected "
            f"(samples, workers) and (workers,) with at least one worker; pass one capacity per column"
        )
    if given.dtype.kind not in "iu" or (given < 0).any() or int(given.sum()) < shape[0]:
        raise Infeasible(
            f"cannot assign {shape[0]} samples; capacities are {given.tolist()}, in all {given.sum()}; expected whole "
            f"numbers, none negative, that add up to at least the samples; raise a capacity or shrink the batch"
        )
    return given.astype(np.int64)


@kernel
def _is_usable(cost_kn: F64) -> bool:
    for i in range(cost_kn.shape[0]):
        for j in range(cost_kn.shape[1]):
            if not abs(cost_kn[i, j]) <= LARGEST_COST:  # false for NaN too
                return False
    return True


def coarse_prices(cost_kn: F64, capacity_n: I64) -> F64:
    """The value of a place at each worker, from a few samples per worker; 0 if there are only a few samples."""
    samples, workers = cost_kn.shape
    price_n = np.zeros(workers)
    fine = max(COARSEN, samples // (PRICING_SAMPLES * workers))
    for stride in (COARSEN * fine, fine):
        if samples >= stride * workers:
            _solve_stride(stride, cost_kn, capacity_n, price_n)
    return price_n


def _solve(cost_kn: F64, capacity_n: I64, price_n: F64) -> I32:
    """Coarse levels find prices, each starting from those of the one before; the last level has every sample."""
    for stride in level_strides(*cost_kn.shape):
        at_k = _solve_stride(stride, cost_kn, capacity_n, price_n)
    return at_k


def _solve_stride(stride: int, cost_kn: F64, capacity_n: I64, price_n: F64) -> I32:
    """Solves one level, which uses every stride-th sample."""
    part_kn = np.ascontiguousarray(cost_kn[::stride])
    at_k: I32 = _solve_level(part_kn, level_places(capacity_n, len(part_kn), len(cost_kn)), price_n)
    return at_k


@kernel
def _solve_level(cost_kn: F64, capacity_n: I64, price_n: F64) -> I32:
    """Exact assignment of all samples of cost_kn; price_n is the start and is replaced by the optimal prices."""
    workers = cost_kn.shape[1]
    at_k, room_n = _place_cheapest(cost_kn, capacity_n, price_n)
    idle_n = _place_idle(price_n, room_n)
    seats = seat(at_k, capacity_n, room_n)
    lists = empty_shortlists(workers)
    distance_n = np.empty(workers, dtype=np.float64)
    before_n = np.empty(workers, dtype=np.int32)
    done_n = np.empty(workers, dtype=np.bool_)
    for source in range(workers):
        while room_n[source] < 0:
            # 1. Find the nearest worker with room.
            distance_n[:] = np.inf
            distance_n[source] = 0.0
            done_n[:] = False
            target = source
            while room_n[target] <= 0:
                refresh(target, cost_kn, seats, lists)
                target = _settle_sample(target, lists.least_nn, idle_n, price_n, room_n, distance_n, before_n, done_n)
            # 2. Raise prices by how much nearer each worker was, which makes every pair of the chain free.
            for j in range(workers):
                if done_n[j]:
                    price_n[j] += distance_n[target] - distance_n[j]
            # 3. Move samples along the chain.
            _shift(source, target, before_n, cost_kn, idle_n, room_n, seats, lists)
    return seats.at_k


@kernel
def _place_cheapest(cost_kn: F64, capacity_n: I64, price_n: F64) -> tuple[I32, I64]:
    """Each sample at its least cost + price, the first with room among equals; room is negative if over-full."""
    samples, workers = cost_kn.shape
    at_k = np.empty(samples, dtype=np.int32)
    room_n = capacity_n.copy()
    for i in range(samples):
        best = 0
        least = cost_kn[i, 0] + price_n[0]
        for j in range(1, workers):
            here = cost_kn[i, j] + price_n[j]
            if here < least or (here == least and room_n[best] <= 0 and room_n[j] > 0):
                best = j
                least = here
        at_k[i] = best
        room_n[best] -= 1
    return at_k, room_n


@kernel
def _place_idle(price_n: F64, room_n: I64) -> I64:
    """Idle places at the least price, where there is room as far as possible; room is lowered by them."""
    cheapest = 0
    left = np.int64(0)
    for j in range(room_n.shape[0]):
        left += room_n[j]
        if price_n[j] < price_n[cheapest]:
            cheapest = j
    idle_n = np.zeros(room_n.shape[0], dtype=np.int64)
    for j in range(room_n.shape[0]):
        if price_n[j] == price_n[cheapest]:
            idle_n[j] = min(left, max(room_n[j], 0))
            left -= idle_n[j]
    idle_n[cheapest] += left
    for j in range(room_n.shape[0]):
        room_n[j] -= idle_n[j]
    return idle_n


@kernel
def _settle_sample(
    here: int, least_nn: F64, idle_n: I64, price_n: F64, room_n: I64, distance_n: F64, before_n: I32, done_n: Bool
) -> int:
    """One round of Dijkstra: settles `here`, extends from it, and returns the nearest worker that
    is not settled yet.
    """
    workers = price_n.shape[0]
    done_n[here] = True
    base = distance_n[here] - price_n[here]
    for there in range(workers):
        if not done_n[there]:
            change = least_nn[here, there]
            if idle_n[here] > 0 and change > 0.0:
                change = 0.0
            # rounding may leave a tight pair a hair below zero
            reach = max(base + change + price_n[there], distance_n[here])
            if reach < distance_n[there]:
                distance_n[there] = reach
                before_n[there] = here
    nearest = -1
    for j in range(workers):
        if not done_n[j] and (
            nearest < 0
            or distance_n[j] < distance_n[nearest]
            or (distance_n[j] == distance_n[nearest] and room_n[nearest] <= 0 and room_n[j] > 0)
        ):
            nearest = j
    return nearest


@kernel
def _shift(
    source: int, target: int, before_n: I32, cost_kn: F64, idle_n: I64, room_n: I64, seats: Seats, lists: Shortlists
) -> None:
    """Moves a sample or idle place along each pair of the chain, and repeats this while the cost stays the same."""
    again = True
    while again and room_n[source] < 0 and room_n[target] > 0:
        amount = 1
        b = target
        while b != source:  # from the far end, so that no worker ever needs more seats than it has
            a = before_n[b]
            was = lists.least_nn[a, b]
            if idle_n[a] > 0 and was >= 0.0:
                if a == source and b == target:
                    amount = min(-room_n[source], room_n[target], idle_n[a])
                idle_n[a] -= amount
                idle_n[b] += amount
                again = again and idle_n[a] > 0
            else:
                move(lists.sample_nnL[a, b, lists.begin_nn[a, b]], b, cost_kn, seats, lists)
                refresh(a, cost_kn, seats, lists)
                again = again and lists.least_nn[a, b] == was
            b = a
        room_n[source] += amount
        room_n[target] -= amount

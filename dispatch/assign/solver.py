"""Opt: the cheapest assignment of samples to workers under capacities, exactly.

Legend: k samples, n workers, L entries of a shortlist.

Written as a transportation problem: n sinks with capacities instead of the papers' m·n copied columns. Each worker has
a price; every sample sits where cost + price is least, and samples then move along shortest chains of workers from
over-full to under-full ones (successive shortest paths with potentials) until all capacities hold. Three things keep it
fast for many workers:

* Prices are first found on every 4th, 16th, … sample with capacities scaled alike, so that few moves remain.
* The best sample to move from a to b comes from a sorted shortlist per ordered pair, refilled by a scan when used up.
  Entries are never searched for: one whose sample has left a is dropped when it reaches the front. (A heap would hold
  every sample of a; nearly all of them are never asked for.)
* A search stops at the first under-full worker, and its chain is used again for as long as the samples are tied.

Places nobody needs (capacities may add up to more than k) are `idle`: like samples that cost nothing anywhere.

Guarantees: the total cost is the least possible, up to float64 rounding; equal input gives equal output; the GIL is
released.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dispatch.assign.levels import level_places, level_strides
from dispatch.errors import BadCost, Infeasible
from infra.kernels import kernel

SHORTLIST = 4
"""L: long enough that refills are rare, short enough that filling it is little more than the scan"""
LARGEST_COST = 1e100
"""beyond this, sums and differences of costs could overflow"""

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
Bool = NDArray[np.bool_]
Solve = Callable[[F64, I64], I32]
"""an exact solver: cost [k, n] and capacities [n] to a worker per sample"""


class Seats(NamedTuple):
    """Who sits where: worker a's samples are seated[first_n[a] : first_n[a] + count_n[a]], in no order."""

    at_k: I32
    """worker of each sample"""
    seated: I32
    first_n: I64
    count_n: I64
    place_k: I64
    """where in `seated` each sample is"""


class Shortlists(NamedTuple):
    """Per ordered pair (a, b): what moving a sample from a to b would change the cost by, best first."""

    change_nnL: F64
    sample_nnL: I32
    begin_nn: I32
    end_nn: I32
    """the list is [begin, end); entries whose sample has left a may still be in it"""
    bound_nn: F64
    """a sample of a that is not listed changes the cost by at least this; infinite if all are listed"""
    least_nn: F64
    """change of the first listed sample that is still at a; infinite if a has none"""
    known_nn: Bool
    """whether least and begin are up to date"""


def solve_transport(cost_kn: ArrayLike, capacity_n: ArrayLike) -> NDArray[np.int32]:
    """The worker of each sample such that no capacity is exceeded and the summed cost is least."""
    cost = np.ascontiguousarray(cost_kn, dtype=np.float64)
    capacity = checked_capacities(cost.shape, capacity_n)
    if cost.shape[0] == 0:
        return np.empty(0, dtype=np.int32)
    check_costs(cost)
    return _solve(cost, capacity, np.zeros(cost.shape[1]))


def solve_again(cost_kn: F64, capacity_n: I64, price_n: F64) -> I32:
    """The same, from the prices of a similar problem, which are replaced by those of this one. Costs must be finite."""
    at_k: I32 = _solve_level(cost_kn, np.minimum(capacity_n, cost_kn.shape[0]), price_n)
    return at_k


def check_costs(cost_kn: F64) -> None:
    """Raises BadCost unless every cost is a finite number of sane size."""
    if not _is_usable(cost_kn):
        sample, worker = (int(x) for x in np.argwhere(~(np.abs(cost_kn) <= LARGEST_COST))[0])
        raise BadCost(
            f"Cannot assign samples: the cost of sample {sample} on worker {worker} is {cost_kn[sample, worker]}; "
            f"expected finite costs of at most {LARGEST_COST:g}. Check the link costs that the matrix was built from."
        )


def checked_capacities(shape: tuple[int, ...], capacity_n: ArrayLike) -> NDArray[np.int64]:
    """Raises BadCost or Infeasible unless the capacities fit a matrix of this shape and hold all samples."""
    given = np.asarray(capacity_n)
    if len(shape) != 2 or given.shape != shape[1:] or shape[1] == 0:
        raise BadCost(
            f"Cannot assign samples: the cost matrix has shape {shape} and capacities {given.shape}; expected "
            f"(samples, workers) and (workers,) with at least one worker. Pass one capacity per column."
        )
    if given.dtype.kind not in "iu" or (given < 0).any() or int(given.sum()) < shape[0]:
        raise Infeasible(
            f"Cannot assign {shape[0]} samples: capacities are {given.tolist()}, in all {given.sum()}; expected "
            f"whole numbers, none negative, that add up to at least the samples. Raise a capacity or shrink the batch."
        )
    return given.astype(np.int64)


@kernel
def _is_usable(cost_kn: F64) -> bool:
    for i in range(cost_kn.shape[0]):
        for j in range(cost_kn.shape[1]):
            if not abs(cost_kn[i, j]) <= LARGEST_COST:  # false for NaN too
                return False
    return True


def _solve(cost_kn: F64, capacity_n: I64, price_n: F64) -> I32:
    """Coarse levels find prices, each starting from those of the one before; the last level has every sample."""
    samples = len(cost_kn)
    for stride in level_strides(*cost_kn.shape):
        part_kn = np.ascontiguousarray(cost_kn[::stride])
        at_k: I32 = _solve_level(part_kn, level_places(capacity_n, len(part_kn), samples), price_n)
    return at_k


@kernel
def _solve_level(cost_kn: F64, capacity_n: I64, price_n: F64) -> I32:
    """Exact assignment of all samples of cost_kn; price_n says where to start and is left at the optimal prices."""
    workers = cost_kn.shape[1]
    at_k, room_n = _place_cheapest(cost_kn, capacity_n, price_n)
    idle_n = _place_idle(price_n, room_n)
    seats = _seat(at_k, capacity_n, room_n)
    lists = Shortlists(
        np.empty((workers, workers, SHORTLIST), dtype=np.float64),
        np.empty((workers, workers, SHORTLIST), dtype=np.int32),
        np.zeros((workers, workers), dtype=np.int32),
        np.zeros((workers, workers), dtype=np.int32),
        np.full((workers, workers), -np.inf, dtype=np.float64),
        np.empty((workers, workers), dtype=np.float64),
        np.zeros((workers, workers), dtype=np.bool_),
    )
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
                _refresh(target, cost_kn, seats, lists)
                target = _settle(target, lists.least_nn, idle_n, price_n, room_n, distance_n, before_n, done_n)
            # 2. Raise prices by how much nearer each worker was, which makes every pair of the chain free.
            for j in range(workers):
                if done_n[j]:
                    price_n[j] += distance_n[target] - distance_n[j]
            # 3. Move samples along the chain.
            _shift(source, target, before_n, cost_kn, idle_n, room_n, seats, lists)
    return seats.at_k


@kernel
def _place_cheapest(cost_kn: F64, capacity_n: I64, price_n: F64) -> tuple[I32, I64]:
    """Each sample at its least cost + price, the first with room among equals; room is negative where over-full."""
    samples, workers = cost_kn.shape
    at_k = np.empty(samples, dtype=np.int32)
    room_n = capacity_n.copy()
    for i in range(samples):
        best, least = 0, cost_kn[i, 0] + price_n[0]
        for j in range(1, workers):
            here = cost_kn[i, j] + price_n[j]
            if here < least or (here == least and room_n[best] <= 0 and room_n[j] > 0):
                best, least = j, here
        at_k[i] = best
        room_n[best] -= 1
    return at_k, room_n


@kernel
def _place_idle(price_n: F64, room_n: I64) -> I64:
    """Idle places at the least price, where there is room as far as possible; room is lowered by them."""
    cheapest, left = 0, np.int64(0)
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
def _seat(at_k: I32, capacity_n: I64, room_n: I64) -> Seats:
    """Seats every sample at its worker, which gets as many seats as it will ever need: those it fills or may fill."""
    workers = capacity_n.shape[0]
    first_n = np.zeros(workers + 1, dtype=np.int64)
    for j in range(workers):
        first_n[j + 1] = first_n[j] + capacity_n[j] + max(-room_n[j], 0)
    count_n = np.zeros(workers, dtype=np.int64)
    seated = np.empty(first_n[workers], dtype=np.int32)
    place_k = np.empty(at_k.shape[0], dtype=np.int64)
    for i in range(at_k.shape[0]):
        place_k[i] = first_n[at_k[i]] + count_n[at_k[i]]
        seated[place_k[i]] = i
        count_n[at_k[i]] += 1
    return Seats(at_k, seated, first_n, count_n, place_k)


@kernel
def _settle(
    here: int, least_nn: F64, idle_n: I64, price_n: F64, room_n: I64, distance_n: F64, before_n: I32, done_n: Bool
) -> int:
    """One round of Dijkstra: settles `here`, reaches on from it, and returns the nearest worker not settled yet."""
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
    """Moves a sample or idle place along each pair of the chain, and again while that costs what it did at first."""
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
                _move(lists.sample_nnL[a, b, lists.begin_nn[a, b]], b, cost_kn, seats, lists)
                _refresh(a, cost_kn, seats, lists)
                again = again and lists.least_nn[a, b] == was
            b = a
        room_n[source] += amount
        room_n[target] -= amount


@kernel
def _refresh(a: int, cost_kn: F64, seats: Seats, lists: Shortlists) -> None:
    """Makes the best move from a to every other worker known."""
    workers = cost_kn.shape[1]
    for b in range(workers):
        if lists.known_nn[a, b] or a == b:
            continue
        begin, end = lists.begin_nn[a, b], lists.end_nn[a, b]
        while begin < end and seats.at_k[lists.sample_nnL[a, b, begin]] != a:
            begin += 1
        lists.begin_nn[a, b] = begin
        if begin == end and lists.bound_nn[a, b] < np.inf:
            _refill(a, b, cost_kn, seats, lists)
            begin = 0
        lists.least_nn[a, b] = lists.change_nnL[a, b, begin] if begin < lists.end_nn[a, b] else np.inf
        lists.known_nn[a, b] = True


@kernel
def _refill(a: int, b: int, cost_kn: F64, seats: Seats, lists: Shortlists) -> None:
    """Lists the L best samples to move from a to b."""
    lists.begin_nn[a, b] = 0
    lists.end_nn[a, b] = 0
    lists.bound_nn[a, b] = np.inf
    for place in range(seats.first_n[a], seats.first_n[a] + seats.count_n[a]):
        sample = seats.seated[place]
        change = cost_kn[sample, b] - cost_kn[sample, a]
        if change < lists.bound_nn[a, b]:
            _enlist(a, b, sample, change, lists)


@kernel
def _enlist(a: int, b: int, sample: int, change: float, lists: Shortlists) -> None:
    """Inserts behind its equals; what falls off the end lowers the bound that unlisted samples are known to reach."""
    change_L, sample_L = lists.change_nnL[a, b], lists.sample_nnL[a, b]
    begin, end = lists.begin_nn[a, b], lists.end_nn[a, b]
    if end == SHORTLIST and begin > 0:
        for q in range(begin, end):
            change_L[q - begin] = change_L[q]
            sample_L[q - begin] = sample_L[q]
        begin, end = 0, end - begin
    elif end == SHORTLIST:
        end -= 1
    q = end
    while q > begin and change_L[q - 1] > change:
        change_L[q] = change_L[q - 1]
        sample_L[q] = sample_L[q - 1]
        q -= 1
    change_L[q] = change
    sample_L[q] = sample
    lists.begin_nn[a, b], lists.end_nn[a, b] = begin, end + 1
    if begin == 0 and end + 1 == SHORTLIST:
        lists.bound_nn[a, b] = change_L[end]


@kernel
def _move(sample: int, b: int, cost_kn: F64, seats: Seats, lists: Shortlists) -> None:
    """Takes the sample off its worker and seats it at b, where it becomes a candidate for every further move."""
    a = seats.at_k[sample]
    seats.count_n[a] -= 1
    last = seats.seated[seats.first_n[a] + seats.count_n[a]]
    seats.seated[seats.place_k[sample]] = last
    seats.place_k[last] = seats.place_k[sample]
    seats.place_k[sample] = seats.first_n[b] + seats.count_n[b]
    seats.seated[seats.place_k[sample]] = sample
    seats.count_n[b] += 1
    seats.at_k[sample] = b
    for c in range(cost_kn.shape[1]):
        if lists.known_nn[a, c] and a != c and lists.end_nn[a, c] > lists.begin_nn[a, c]:
            lists.known_nn[a, c] = lists.sample_nnL[a, c, lists.begin_nn[a, c]] != sample
        change = cost_kn[sample, c] - cost_kn[sample, b]
        if c != b and change < lists.bound_nn[b, c]:
            _enlist(b, c, sample, change, lists)
            lists.known_nn[b, c] = False

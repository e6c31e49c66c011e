"""Annealing: a first assignment for a batch of which nobody holds any rows yet.

Legend: B samples, n workers, k samples that are placed again.

The first batch of a generation decides for dozens of steps which workers hold which rows. Opt does not help there: to
it all workers with equal links are alike, and the rounds that start from its answer
(dispatch/placement/assign/improvement.py) find poor groups, because whole groups would have to swap places. So samples
are first placed at random, with odds that favour cheap workers: only a little at first, when the temperature is high,
and more as it falls:

1. A sweep visits all samples in random order; each goes to the worker with the least marginal cost + price + noise.
2. A worker that gains a sample becomes more expensive, one that loses a sample cheaper: capacities hold approximately
   (SLACK).
3. After the last sweep one exact round makes them hold exactly.

Guarantees: as many samples per worker as requested; equal input and draws give equal output.
"""

from time import perf_counter
from typing import NamedTuple

import numpy as np

from dispatch.placement.arrays import F64, I32, I64
from dispatch.placement.assign.batch_cost import Placement, Shared, Users, add_up, batch_cost, join, leave
from dispatch.placement.assign.situation import Situation
from dispatch.placement.assign.solver import SolveAgain, solve_again
from infra.base.kernels import kernel

SWEEPS = 200
"""Number of sweeps; more of them hardly lower the cost of the first batch any further."""
MOST_LOOKS = 50_000_000
"""Most examined (row, worker) pairs over all sweeps: about a quarter of a second; larger batches get fewer sweeps."""
HOTTEST = 6.0
"""Scale of the noise in the first and in the last sweep, in rows over the average link."""
COLDEST = 0.2
PRICE_STEP = 0.2
"""How much more expensive one more sample makes a worker, in units of the noise."""
SLACK = 1 / 8
"""Share of its capacity by which a worker may be over-full between sweeps."""


class Rooms(NamedTuple):
    """The workers as a sweep sees them."""

    count_n: I64
    """Samples at each worker; kept up to date."""
    most_n: I64
    price_n: F64
    """Added to the cost of a sample there; kept up to date."""
    push_cost_n: F64


def anneal(
    placed: Placement,
    places_n: I64,
    draw: np.random.Generator,
    deadline: float | None = None,
    again: SolveAgain = solve_again,
) -> None:
    """Places all samples again, places_n of them at each worker; sweeps end at the deadline (of perf_counter)."""
    samples = placed.at_B.size
    workers = places_n.size
    most_n = places_n + np.ceil(SLACK * places_n).astype(np.int64)
    price_n = np.zeros(workers)
    mean_cost = (float(placed.row_cost_n.mean()) + float(placed.push_cost_n.mean())) / 2
    looks = max(1, placed.shared.row_G.size * workers)
    for heat in np.geomspace(HOTTEST, COLDEST, int(np.clip(MOST_LOOKS // looks, 1, SWEEPS))) * mean_cost:
        if deadline is not None and perf_counter() > deadline:
            break
        noise_Bn = -heat * draw.gumbel(size=(samples, workers))
        sweep(placed, draw.permutation(samples), noise_Bn, price_n, most_n, PRICE_STEP * heat)
    move_round(placed, places_n, draw, price_n, again)


def move_round(
    placed: Placement, places_n: I64, draw: np.random.Generator, price_n: F64, again: SolveAgain = solve_again
) -> tuple[I64, I32]:
    """Places a random half of the samples, and all of over-full workers, exactly; returns them and where they were."""
    is_over_n = placed.counts_n > places_n
    is_moving_B = (draw.random(placed.at_B.size) < 0.5) | is_over_n[placed.at_B]
    moving_k = np.flatnonzero(is_moving_B)
    was_k = placed.at_B[moving_k]
    staying_n = np.bincount(placed.at_B[~is_moving_B], minlength=places_n.size)
    placed.move(moving_k, again(placed.marginal_costs(moving_k), places_n - staying_n, price_n))
    return moving_k, was_k


def sweep(placed: Placement, order_B: I64, noise_Bn: F64, price_n: F64, most_n: I64, price_step: float) -> None:
    """Moves every sample in this order to its best worker with room, by marginal cost, price and
    noise; changes prices.
    """
    rooms = Rooms(placed.counts_n, most_n, price_n, placed.push_cost_n)
    _sweep(placed.shared, placed.users, placed.at_B, order_B, noise_Bn, rooms, price_step)


def sweep_reference(
    situation: Situation, start_B: I32, order_B: I64, noise_Bn: F64, price_n: F64, most_n: I64, price_step: float
) -> I32:
    """The same, computed from the cost of the whole batch with the sample on each worker in turn."""
    at_B, price_n = start_B.copy(), price_n.copy()
    for q, i in enumerate(order_B):
        here = at_B[i]
        count_n = np.bincount(at_B, minlength=price_n.size)
        cost_n = price_n + noise_Bn[q]
        for j in range(price_n.size):
            at_B[i] = j
            cost_n[j] += batch_cost(situation, at_B)
            if j != here and count_n[j] >= most_n[j]:
                cost_n[j] = np.inf
        at_B[i] = cost_n.argmin()
        price_n[at_B[i]] += price_step
        price_n[here] -= price_step
    return at_B


@kernel
def _sweep(
    shared: Shared, users: Users, at_B: I32, order_B: I64, noise_Bn: F64, rooms: Rooms, price_step: float
) -> None:
    count_n, most_n, price_n, push_cost_n = rooms
    cost_n = np.empty(push_cost_n.shape[0], np.float64)
    for q in range(order_B.shape[0]):
        i = order_B[q]
        here = at_B[i]
        add_up(shared, users, i, here, push_cost_n, cost_n)
        best = here
        least = cost_n[here] + price_n[here] + noise_Bn[q, here]
        for j in range(cost_n.shape[0]):
            there = cost_n[j] + price_n[j] + noise_Bn[q, j]
            if there < least and count_n[j] < most_n[j]:
                best = j
                least = there
        if best != here:
            leave(shared, users, i, here)
            join(shared, users, i, best)
            at_B[i] = best
            count_n[here] -= 1
            count_n[best] += 1
            price_n[here] -= price_step
            price_n[best] += price_step

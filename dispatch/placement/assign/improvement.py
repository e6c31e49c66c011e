"""joint's assignment: the least cost of the batch as a whole (dispatch/placement/assign/batch_cost.py), not of its
single samples.

Starting from Opt's assignment, rounds improve it:

1. Take a random half of the samples, drawn from (seed, step).
2. Compute the marginal cost of each on every worker, given where all other samples are: nothing for a row that another
   sample brings there anyway; otherwise the pull, the owner's push and the split.
3. Solve that transport problem exactly with the places that these samples had.
4. Keep the result unless the batch as a whole became more expensive.

The first batch of a generation, of which nobody holds a row, starts from annealing
(dispatch/placement/assign/annealing.py): rounds hardly leave the groups that they start with, and need dozens of
batches to form equally good ones by themselves.

Alpha, the share of exact solving, has these stages: 0 is Heu; up to ¼ the share of samples that Opt assigns grows to
all (dispatch/placement/assign/hybrid.py); from ¼ to 1 the number of rounds, which take most of the time, grows to that
of the policy. A deadline lowers alpha along these stages: no round is begun that would end too late, and if Opt itself
takes too long, it gets fewer samples.

Guarantees: capacities hold; never more expensive than the start by ``batch_cost``; equal input gives equal output.
"""

from math import ceil
from time import perf_counter

import numpy as np

from dispatch.placement.arrays import I32
from dispatch.placement.assign.annealing import anneal, move_round
from dispatch.placement.assign.backend import CPU, Opt
from dispatch.placement.assign.batch_cost import Placement
from dispatch.placement.assign.hybrid import assign_hybrid
from dispatch.placement.assign.pace import OptPace
from dispatch.placement.assign.situation import Assignment, Situation, check_capacities
from dispatch.placement.assign.solver import SolveAgain, solve_again

OPT_ALPHA = 1 / 4
"""Alpha at which Opt assigns all samples, and no round follows."""


class Joint:
    """Opt or, if nobody holds anything, annealing; then rounds of exact reassignment under marginal costs."""

    def __init__(self, rounds: int, seed: int, opt: Opt = CPU) -> None:
        self._rounds = rounds
        self._seed = seed
        self._opt = opt
        self._pace = OptPace()

    def assign(self, situation: Situation) -> Assignment:
        check_capacities(situation)
        began = perf_counter()
        wanted, rounds = rung(situation.alpha, self._rounds)
        share = self._pace.affordable(wanted, situation)
        at_B = self._start(situation, share)
        self._pace.learn(share, situation, perf_counter() - began)
        if share < wanted or not rounds:
            return Assignment(at_B, was_shortened=share < wanted)
        deadline = None if situation.budget_seconds is None else began + situation.budget_seconds
        at_B, done = improve_until(deadline, situation, at_B, rounds, self._seed, self._opt.again)
        return Assignment(at_B, was_shortened=done < rounds)

    def _start(self, situation: Situation, share: float) -> I32:
        """The start of the rounds: that share of the samples by Opt, the others by Heu."""
        if share == 1.0:
            return self._opt.assign(situation)
        return assign_hybrid(self._opt.costs(situation), situation.capacity_n, share, again=self._opt.again)


def rung(alpha: float, rounds: int) -> tuple[float, int]:
    """The share of samples that Opt assigns, and how many of the rounds follow."""
    return min(1.0, alpha / OPT_ALPHA), max(0, ceil((alpha - OPT_ALPHA) / (1 - OPT_ALPHA) * rounds - 1e-9))


def improve(situation: Situation, start_B: I32, rounds: int, seed: int) -> I32:
    """An assignment with as many samples per worker as start_B and at most its batch cost."""
    return improve_until(None, situation, start_B, rounds, seed)[0]


def improve_until(
    deadline: float | None,
    situation: Situation,
    start_B: I32,
    rounds: int,
    seed: int,
    again: SolveAgain = solve_again,
) -> tuple[I32, int]:
    """The same, and how many rounds were done.

    No round is begun that would end after the deadline (of perf_counter) if it took as long as the longest so far.
    """
    placed = Placement(situation, start_B)
    places_n = placed.counts_n
    start_cost = least = placed.cost()
    draw = np.random.default_rng([seed, situation.step])
    if rounds and is_cold(placed, situation) and (deadline is None or perf_counter() < deadline):
        anneal(placed, places_n, draw, deadline, again)
        least = placed.cost()
    price_n = np.zeros(situation.workers)
    began = perf_counter()
    longest = 0.0
    done = 0
    while done < rounds:
        longest, began = max(longest, perf_counter() - began), perf_counter()
        if deadline is not None and began + longest > deadline:
            break
        moving_k, was_k = move_round(placed, places_n, draw, price_n, again)
        cost = placed.cost()
        if cost > least:
            placed.move(moving_k, was_k)
        else:
            least = cost
        done += 1
    return (placed.at_B if least <= start_cost else start_B), done


def is_cold(placed: Placement, situation: Situation) -> bool:
    """Whether nobody holds any row of the batch, although samples have rows in common."""
    return placed.shared.row_G.size > 0 and not situation.holders_UQ.any()

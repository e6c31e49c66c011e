"""Two-fold parallelism: which rows cost less if every worker has a replica and gradients are summed in a ring.

HypeReca replicates the R most used rows and finds the best R from a curve (``overall``). There, every use of another
row is a transfer. Here a worker moves a row once in a step however many of its samples use it, keeps it, and only
replicated rows that a step uses are summed. So there is no curve to search: each row is judged alone, by what it has
cost through the shards since the last choice, and what it would have cost in a ring.

- through the shards: every push and pull of it, in rows with state, times the cost of that direction of the worker's
  link or of its share of the link that all shards share (dispatch/placement/capacity/server_link.py);
- in a ring of n: in every step that used it each worker sends 2(n-1)/n of its gradient, and all wait for the slowest
  link: 2(n-1) times the value's share of a row, times the cost of that link's slower direction. The shards' link is not
  used.

A row enters if it pays for the ring with a margin, and for bringing it to every worker. What a replica would cost
through the shards is not observed; while several workers use it, each would push a part and pull the sum. It leaves if
that no longer pays for the ring, less the margin; rows that are not used leave. Between the two margins nothing
changes, so the set does not flutter.

Over the hub there is no such ring: a reduction is n pushes and n pulls over the shards' link and the workers', and a
row that is pushed and pulled on demand moves for its users alone, who are n at most. So nothing can be saved there.

Legend: R rows by number, U distinct rows of a batch, B samples, F keys per sample, n workers.
"""

import numpy as np

from dispatch.placement.arrays import F64, I32, I64, Bool
from dispatch.placement.rows.index import BatchRows
from dispatch.placement.rows.plan import RoundPlan
from infra.base.growing import GrowingArray
from infra.base.kernels import kernel

MARGIN = 0.2
"""How much cheaper a ring must be before a row enters, and how much more expensive before it leaves."""
LEAST_STEPS = 16
"""Least number of steps between two choices: after fewer, what rows cost is chance."""


class TwoFold:
    """Learns what rows cost in the steps of a generation, and chooses which are replicated."""

    def __init__(self, most: int, workers: int, value_share: float) -> None:
        """most: rows that may be replicated at a time. value_share: see Situation."""
        self._most = most
        self._workers = workers
        self._value_share = value_share
        self._all_costs = GrowingArray(np.float64)
        self._all_steps = GrowingArray(np.int64)
        self._cost_R: F64 = self._all_costs.first(0)
        """What each row has cost through the shards since the last choice; of a replicated one, what it would have."""
        self._steps_R: I64 = self._all_steps.first(0)
        """Steps since then that used it."""
        self._steps = 0
        """Steps since then."""

    def count_step(
        self,
        batch: BatchRows,
        assignment_B: I32,
        plan: RoundPlan,
        replicated: I64,
        row_cost_n: F64,
        push_cost_n: F64,
    ) -> None:
        """Counts what a step uses and moves. replicated: those of now.

        row_cost_n, push_cost_n: of pulling and of pushing a row through the shards.
        """
        rows = int(batch.rows_U.max(initial=-1)) + 1
        if rows > self._steps_R.size:
            self._cost_R, self._steps_R = self._all_costs.first(rows), self._all_steps.first(rows)
        self._steps += 1
        count_uses(batch.rows_U, self._steps_R)
        known = replicated[replicated < self._cost_R.size]
        cost_H = self._cost_R[known]
        for worker, moved in enumerate(plan.workers):
            pull = float(row_cost_n[worker])
            push = float(push_cost_n[worker])
            for moves, cost in (
                (moved.push_owned, push),
                (moved.pull_full, pull),
                (moved.push_parts, push * self._value_share),
                (moved.pull_values, pull * self._value_share),
            ):
                add_costs(moves.rows, cost, self._cost_R)
        self._cost_R[known] = cost_H  # a replica moves as it enters only
        if replicated.size and (is_hot_U := np.isin(batch.rows_U, replicated)).any():
            use_cost_n = self._value_share * row_cost_n + self._value_share * push_cost_n
            cost_U = on_demand_costs(batch.local_BF, assignment_B, is_hot_U, use_cost_n)
            self._cost_R[batch.rows_U[is_hot_U]] += cost_U[is_hot_U]

    def choose(self, replicated: I64, row_cost_n: F64, link_cost_n: F64) -> I64:
        """The rows to replicate from the next step on, ascending; those of now if too few steps were counted.

        replicated: those of now. row_cost_n: cost of pulling a row through the shards; link_cost_n: of a row over
        the slower direction of each worker's link.
        """
        if self._steps < LEAST_STEPS:
            return replicated
        is_hot_R = np.zeros(self._steps_R.size, np.bool_)
        is_hot_R[replicated[replicated < is_hot_R.size]] = True
        ring = ring_cost(link_cost_n, self._value_share)
        stays, enters = worthwhile(
            self._cost_R, np.asarray(self._steps_R * ring, np.float64), float(row_cost_n.sum()), is_hot_R
        )
        room = self._most - replicated.size  # a place that becomes free in this step still holds the row that leaves
        self._cost_R[:], self._steps_R[:], self._steps = 0, 0, 0
        return np.sort(np.concatenate((stays, enters[:room])))

    def by_saving(self, link_cost_n: F64) -> I64:
        """All rows that were used since the last choice, those that a ring would have saved most of first."""
        (used,) = np.nonzero(self._steps_R)
        saved = self._cost_R[used] - self._steps_R[used] * ring_cost(link_cost_n, self._value_share)
        return used[np.argsort(-saved, kind="stable")]

    def forget(self, rows: I64) -> None:
        """Discards what was counted of rows whose keys are forgotten."""
        known = rows[rows < self._steps_R.size]
        self._cost_R[known], self._steps_R[known] = 0, 0


def ring_cost(link_cost_n: F64, value_share: float) -> float:
    """Cost of summing the gradients of one row in a ring: all links are busy as long as the slowest takes."""
    return float(2 * (link_cost_n.size - 1) * value_share * link_cost_n.max())


def worthwhile(cost_R: F64, ring_R: F64, entry: float, is_hot_R: Bool) -> tuple[I64, I64]:
    """Replicated rows that stay, ascending, and others that should enter, those that save most first.

    cost_R: of each row through the shards; ring_R: in a ring; entry: of bringing a row to every worker.
    """
    (stays,) = np.nonzero(is_hot_R & (cost_R > 0) & (cost_R > (1 - MARGIN) * ring_R))
    gain_R = cost_R - (1 + MARGIN) * ring_R - entry
    (enters,) = np.nonzero(~is_hot_R & (gain_R > 0))
    return stays, enters[np.argsort(-gain_R[enters], kind="stable")]


def is_worthwhile(cost: float, ring: float, entry: float, is_hot: bool) -> bool:
    """The same for one row, in words: the reference."""
    if is_hot:
        return cost > 0 and cost > (1 - MARGIN) * ring
    return cost - (1 + MARGIN) * ring - entry > 0


@kernel
def count_uses(rows_U: I64, steps_R: I64) -> None:
    for row in rows_U:
        steps_R[row] += 1


@kernel
def add_costs(rows: I64, cost: float, cost_R: F64) -> None:
    """Rows that are not counted yet are evicted, or leave, and were not used since."""
    for row in rows:
        if row < cost_R.size:
            cost_R[row] += cost


@kernel
def on_demand_costs(local_BF: I32, assignment_B: I32, is_hot_U: Bool, use_cost_n: F64) -> F64:
    """What replicated rows would cost on demand: if several workers use one, each pushes a part and pulls the sum.

    use_cost_n: cost of pushing and pulling a value for each worker.
    """
    uses_Un = np.zeros((is_hot_U.size, use_cost_n.size), np.bool_)
    cost_U = np.zeros(is_hot_U.size)
    users_U = np.zeros(is_hot_U.size, np.int64)
    for b in range(local_BF.shape[0]):
        worker = assignment_B[b]
        for u in local_BF[b]:
            if is_hot_U[u] and not uses_Un[u, worker]:
                uses_Un[u, worker] = True
                users_U[u] += 1
                cost_U[u] += use_cost_n[worker]
    for u in range(is_hot_U.size):
        if users_U[u] < 2:
            cost_U[u] = 0.0
    return cost_U


def users_cost(local_BF: I32, assignment_B: I32, u: int, use_cost_n: F64) -> float:
    """The same for one row, in words: the reference."""
    users = {int(worker) for worker, row in zip(assignment_B, local_BF, strict=True) if u in row}
    return sum(float(use_cost_n[worker]) for worker in users) if len(users) > 1 else 0.0


# ── the paper's curve, for reports ────────────────────────────────────────────────────────────────────────────────────
def rho(uses_R: I64) -> F64:
    """Share of all uses that the r most used rows have, for r = 0, 1, … (the paper's algorithm 1)."""
    ranked = np.sort(uses_R)[::-1]
    return np.concatenate(([0.0], ranked.cumsum() / max(1, ranked.sum())))


def overall(rho_r: F64, transfers: float, reduce_cost: float, transfer_cost: float) -> F64:
    """The paper's cost of a step if the r most used rows are replicated: all of them are reduced, and every other use
    is a transfer.

    transfers: of a step if none is replicated.
    """
    return np.asarray(np.arange(rho_r.size) * reduce_cost + transfers * (1 - rho_r) * transfer_cost)

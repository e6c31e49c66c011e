"""The cost of a batch as a whole: what an assignment moves, and the later cost of the split rows that it leaves.

Legend: B samples, F keys per sample, U distinct rows of the batch, n workers, Q words of 64 workers each; S rows that
two samples or more have in common, G pairs of a sample and such a row, k samples that are placed again.

A worker pulls a row once, however many of its samples use it; an owner pushes once if anyone else uses its row. Both
carry value and state, but a row that several workers train is pulled as a value only (``value_share`` of the bytes): it
is split, which costs every one of them a push of its part and, at its next use, a pull. This is charged here, although
it is due later (FUTURE).

A row of which chunks are pruned is pulled, and pushed by its owner, at its size (``size_U``). Parts travel at full
width, so the later cost of a split row does not depend on its size.

Rows of a single sample are priced once, before any search: their cost depends on nobody else. For the others a
Placement counts who uses them, so that the marginal cost of a sample takes one lookup for each of its rows.
"""

from typing import NamedTuple

import numpy as np

from dispatch.placement.arrays import F64, I32, I64, U8, U64
from dispatch.placement.assign.situation import Situation
from dispatch.placement.rows.holders import held, held_by
from dispatch.placement.rows.states import OWNED, SPLIT
from infra.base.kernels import kernel

FUTURE = 1.0
"""What a part of a split row will cost its holder later, in whole rows over its link: its push, and the extra cost of
the next pull. If state is moved, too, anything from 0.4 to 1 gives about the same.
"""
NOBODY = -1
ALL_WHOLE = np.empty(0, np.float64)
"""Instead of sizes: all rows are whole."""


class Shared(NamedTuple):
    """The batch as the rounds see it: the separate cost of its samples, and the rows that they have in common."""

    alone_Bn: F64
    """Cost of the rows that only this sample uses."""
    first_B: I32
    """The shared rows of sample i are row_G[first_B[i] : first_B[i + 1]], each once."""
    row_G: I32
    pull_Sn: F64
    """Cost of the pull by each worker, 0 if it holds the newest value."""
    owner_S: I32
    """The worker that pushes if anyone else uses the row, or NOBODY."""
    push_S: F64
    """Cost of that push."""
    value_share: float
    """Share of pull_Sn that a pull costs if several workers use the row."""


class Users(NamedTuple):
    """Who uses the shared rows under the current assignment."""

    count_Sn: I32
    """Samples at each worker."""
    workers_S: I32
    """Number of workers with at least one sample."""
    sum_S: I32
    """Sum of the numbers of these workers: the worker itself if there is only one."""


class Placement:
    """An assignment during a search, with counts that make its cost and every change of it cheap to compute."""

    def __init__(self, situation: Situation, at_B: I32) -> None:
        self.row_cost_n = situation.row_cost_n
        self.shared = share(situation)
        self.at_B = at_B.copy()
        self.users = _count(self.shared, self.at_B)

    @property
    def counts_n(self) -> I64:
        """Samples at each worker."""
        return np.bincount(self.at_B, minlength=self.row_cost_n.size)

    def cost(self) -> float:
        """The batch cost, except for what no assignment can change."""
        return float(_total(self.shared, self.users, self.at_B, self.row_cost_n))

    def marginal_costs(self, moving_k: I64) -> F64:
        """What each of the samples adds to the batch cost on each worker, if the others stay where they are."""
        cost_kn: F64 = _marginal(self.shared, self.users, self.at_B, moving_k, self.row_cost_n)
        return cost_kn

    def move(self, moving_k: I64, to_k: I32) -> None:
        """Moves the samples to these workers."""
        _move(self.shared, self.users, self.at_B, moving_k, to_k)


def share(situation: Situation) -> Shared:
    rows = situation.local_BF, situation.state_U, situation.holders_UQ
    size_U = ALL_WHOLE if situation.size_U is None else situation.size_U
    return _share(*rows, situation.row_cost_n, situation.value_share, size_U)


def batch_cost(situation: Situation, at_B: I32) -> float:
    """Everything that the assignment moves, with the later cost of split rows; plain, one row at a time."""
    held_Un = held_by(situation.holders_UQ, situation.workers)
    cost_n = situation.row_cost_n
    total = 0.0
    for u in range(len(situation.state_U)):
        users = set(at_B[(situation.local_BF == u).any(axis=1)].tolist())
        holders = set(np.flatnonzero(held_Un[u]).tolist())
        if not users:
            continue
        size = 1.0 if situation.size_U is None else situation.size_U[u]
        pulling = users if situation.state_U[u] == SPLIT else users - holders
        total += size * (situation.value_share if len(users) > 1 else 1.0) * sum(cost_n[j] for j in pulling)
        if situation.state_U[u] == OWNED and users != holders:
            total += size * sum(cost_n[j] for j in holders)
        if len(users) > 1:
            total += FUTURE * sum(cost_n[j] for j in users)
    return float(total)


@kernel
def _share(local_BF: I32, state_U: U8, holders_UQ: U64, row_cost_n: F64, value_share: float, size_U: F64) -> Shared:
    """Separates the rows of one sample from those of several, and prices both. size_U: or ALL_WHOLE."""
    samples, fields = local_BF.shape
    rows = state_U.shape[0]
    workers = row_cost_n.shape[0]
    seen_U = np.full(rows, -1, np.int32)
    uses_U = np.zeros(rows, np.int32)
    for i in range(samples):
        for f in range(fields):
            u = local_BF[i, f]
            uses_U[u] += seen_U[u] != i
            seen_U[u] = i
    number_U = np.full(rows, -1, np.int32)
    shared = 0
    pairs = 0
    for u in range(rows):
        if uses_U[u] > 1:
            number_U[u] = shared
            shared += 1
            pairs += uses_U[u]
    pull_Sn = np.empty((shared, workers), np.float64)
    owner_S = np.empty(shared, np.int32)
    push_S = np.zeros(shared, np.float64)
    alone_Bn = np.zeros((samples, workers), np.float64)
    first_B = np.zeros(samples + 1, np.int32)
    row_G = np.empty(pairs, np.int32)
    pull_n = np.empty(workers, np.float64)
    at = 0
    for u in range(rows):
        s = number_U[u]
        if s >= 0:
            size = size_U[u] if size_U.size > 0 else 1.0
            owner_S[s] = _price(state_U[u], holders_UQ, u, row_cost_n, size, pull_Sn[s])
            if owner_S[s] >= 0:
                push_S[s] = size * row_cost_n[owner_S[s]]
    for i in range(samples):
        for f in range(fields):
            u = local_BF[i, f]
            if seen_U[u] == -2 - i:
                continue
            seen_U[u] = -2 - i
            if number_U[u] >= 0:
                row_G[at] = number_U[u]
                at += 1
                continue
            size = size_U[u] if size_U.size > 0 else 1.0
            owner = _price(state_U[u], holders_UQ, u, row_cost_n, size, pull_n)
            push = size * row_cost_n[owner] if owner >= 0 else 0.0
            for j in range(workers):
                alone_Bn[i, j] += pull_n[j] + push
            if owner >= 0:
                alone_Bn[i, owner] -= push
        first_B[i + 1] = at
    return Shared(alone_Bn, first_B, row_G, pull_Sn, owner_S, push_S, value_share)


@kernel
def _price(state: int, holders_UQ: U64, u: int, row_cost_n: F64, size: float, pull_n: F64) -> int:
    """Computes each worker's pull of one row; returns its owner or NOBODY."""
    owner = NOBODY
    for j in range(row_cost_n.shape[0]):
        holds = held(holders_UQ, u, j)
        pull_n[j] = 0.0 if holds and state != SPLIT else size * row_cost_n[j]
        if holds and state == OWNED:
            owner = j
    return owner


@kernel
def _count(shared: Shared, at_B: I32) -> Users:
    count_Sn = np.zeros(shared.pull_Sn.shape, np.int32)
    workers_S = np.zeros(shared.owner_S.shape[0], np.int32)
    sum_S = np.zeros(shared.owner_S.shape[0], np.int32)
    users = Users(count_Sn, workers_S, sum_S)
    for i in range(at_B.shape[0]):
        join(shared, users, i, at_B[i])
    return users


@kernel
def join(shared: Shared, users: Users, sample: int, worker: int) -> None:
    for g in range(shared.first_B[sample], shared.first_B[sample + 1]):
        s = shared.row_G[g]
        if users.count_Sn[s, worker] == 0:
            users.workers_S[s] += 1
            users.sum_S[s] += worker
        users.count_Sn[s, worker] += 1


@kernel
def leave(shared: Shared, users: Users, sample: int, worker: int) -> None:
    for g in range(shared.first_B[sample], shared.first_B[sample + 1]):
        s = shared.row_G[g]
        users.count_Sn[s, worker] -= 1
        if users.count_Sn[s, worker] == 0:
            users.workers_S[s] -= 1
            users.sum_S[s] -= worker


@kernel
def _move(shared: Shared, users: Users, at_B: I32, moving_k: I64, to_k: I32) -> None:
    for q in range(moving_k.shape[0]):
        i = moving_k[q]
        if at_B[i] != to_k[q]:
            leave(shared, users, i, at_B[i])
            join(shared, users, i, to_k[q])
            at_B[i] = to_k[q]


@kernel
def _total(shared: Shared, users: Users, at_B: I32, row_cost_n: F64) -> float:
    """The batch cost, except for what no assignment can change."""
    total = 0.0
    for i in range(at_B.shape[0]):
        total += shared.alone_Bn[i, at_B[i]]
    for s in range(shared.owner_S.shape[0]):
        pull, later = (shared.value_share, FUTURE) if users.workers_S[s] > 1 else (1.0, 0.0)
        for j in range(row_cost_n.shape[0]):
            if users.count_Sn[s, j] > 0:
                total += pull * shared.pull_Sn[s, j] + later * row_cost_n[j]
        owner = shared.owner_S[s]
        if owner >= 0 and (users.workers_S[s] > 1 or users.count_Sn[s, owner] == 0):
            total += shared.push_S[s]
    return total


@kernel
def _marginal(shared: Shared, users: Users, at_B: I32, moving_k: I64, row_cost_n: F64) -> F64:
    cost_kn = np.empty((moving_k.shape[0], row_cost_n.shape[0]), np.float64)
    for q in range(moving_k.shape[0]):
        add_up(shared, users, moving_k[q], at_B[moving_k[q]], row_cost_n, cost_kn[q])
    return cost_kn


@kernel
def add_up(shared: Shared, users: Users, i: int, here: int, row_cost_n: F64, cost_n: F64) -> None:
    """Computes what sample i, now at worker here, adds to the batch cost on each worker."""
    workers = row_cost_n.shape[0]
    for j in range(workers):
        cost_n[j] = shared.alone_Bn[i, j]
    for g in range(shared.first_B[i], shared.first_B[i + 1]):
        s = shared.row_G[g]
        leaves = users.count_Sn[s, here] == 1
        others = users.workers_S[s] - leaves
        owner = shared.owner_S[s]
        # the cost added by a worker that does not use the row yet, besides its pull
        fixed = 0.0
        pull, later = (shared.value_share, FUTURE) if others > 0 else (1.0, 0.0)
        if others == 1:
            single = users.sum_S[s] - (here if leaves else 0)
            fixed = FUTURE * row_cost_n[single] + (shared.value_share - 1.0) * shared.pull_Sn[s, single]
            if single == owner:
                fixed += shared.push_S[s]
        elif others == 0 and owner >= 0:
            fixed = shared.push_S[s]
            cost_n[owner] -= fixed
        for j in range(workers):
            others_here = users.count_Sn[s, j] - (1 if j == here else 0)
            if others_here == 0:
                cost_n[j] += pull * shared.pull_Sn[s, j] + later * row_cost_n[j] + fixed

"""The cost of a batch as a whole: what an assignment moves, and the later cost of the split rows that it leaves.

Legend: B samples, F keys per sample, U distinct rows of the batch, n workers, Q words of 64 workers each; S rows that
two samples or more have in common, G pairs of a sample and such a row, k samples that are placed again, b blocks.

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
from numba import prange

from dispatch.placement.arrays import F64, I32, I64, U8, U64
from dispatch.placement.assign.situation import Situation
from dispatch.placement.rows.holders import held, held_by
from dispatch.placement.rows.states import OWNED, SPLIT
from infra.base.kernels import kernel, range_of, threaded

FUTURE = 1.0
"""What a part of a split row will cost its holder later, in whole rows over its uplink: its push, which is the larger
part of it, and the extra cost of the next pull. If state is moved, too, anything from 0.4 to 1 gives about the same.
"""
NOBODY = -1
BLOCKS = 16
"""Parts into which samples and rows are divided: the same for any number of threads, so that sums are, too."""
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
        self.push_cost_n = situation.push_cost_n
        self.shared = share(situation)
        self.at_B = at_B.copy()
        self.users = _count(self.shared, self.at_B)

    @property
    def counts_n(self) -> I64:
        """Samples at each worker."""
        return np.bincount(self.at_B, minlength=self.row_cost_n.size)

    def cost(self) -> float:
        """The batch cost, except for what no assignment can change."""
        total_b = np.empty(BLOCKS)
        _total(BLOCKS, self.shared, self.users, self.at_B, self.push_cost_n, total_b)
        return float(total_b.sum())

    def marginal_costs(self, moving_k: I64) -> F64:
        """What each of the samples adds to the batch cost on each worker, if the others stay where they are."""
        cost_kn = np.empty((moving_k.size, self.row_cost_n.size), np.float64)
        _marginal(BLOCKS, self.shared, self.users, self.at_B, moving_k, self.push_cost_n, cost_kn)
        return cost_kn

    def move(self, moving_k: I64, to_k: I32) -> None:
        """Moves the samples to these workers."""
        _move(self.shared, self.users, self.at_B, moving_k, to_k)


def share(situation: Situation) -> Shared:
    rows = situation.local_BF, situation.state_U, situation.holders_UQ
    size_U = ALL_WHOLE if situation.size_U is None else situation.size_U
    return _share(*rows, situation.row_cost_n, situation.push_cost_n, situation.value_share, size_U)


def batch_cost(situation: Situation, at_B: I32) -> float:
    """Everything that the assignment moves, with the later cost of split rows; plain, one row at a time."""
    held_Un = held_by(situation.holders_UQ, situation.workers)
    pull_cost_n = situation.row_cost_n
    push_cost_n = situation.push_cost_n
    total = 0.0
    for u in range(len(situation.state_U)):
        users = set(at_B[(situation.local_BF == u).any(axis=1)].tolist())
        holders = set(np.flatnonzero(held_Un[u]).tolist())
        if not users:
            continue
        size = 1.0 if situation.size_U is None else situation.size_U[u]
        pulling = users if situation.state_U[u] == SPLIT else users - holders
        total += size * (situation.value_share if len(users) > 1 else 1.0) * sum(pull_cost_n[j] for j in pulling)
        if situation.state_U[u] == OWNED and users != holders:
            total += size * sum(push_cost_n[j] for j in holders)
        if len(users) > 1:
            total += FUTURE * sum(push_cost_n[j] for j in users)
    return float(total)


def _share(
    local_BF: I32, state_U: U8, holders_UQ: U64, row_cost_n: F64, push_cost_n: F64, value_share: float, size_U: F64
) -> Shared:
    """Separates the rows of one sample from those of several, and prices both. size_U: or ALL_WHOLE."""
    samples = local_BF.shape[0]
    workers = row_cost_n.size
    number_U, shared = _number_shared(local_BF, state_U.size)
    rows = state_U, holders_UQ, row_cost_n, push_cost_n, size_U, number_U
    prices = np.empty((shared, workers), np.float64), np.empty(shared, np.int32), np.zeros(shared, np.float64)
    _price_shared(BLOCKS, *rows, *prices)
    first_B = np.zeros(samples + 1, np.int32)
    _count_shared(BLOCKS, local_BF, number_U, first_B)
    np.cumsum(first_B, out=first_B)
    row_G = np.empty(first_B[-1], np.int32)
    alone_Bn = np.zeros((samples, workers), np.float64)
    _price_alone(BLOCKS, local_BF, *rows, first_B, row_G, alone_Bn)
    return Shared(alone_Bn, first_B, row_G, *prices, value_share)


@kernel
def _number_shared(local_BF: I32, rows: int) -> tuple[I32, int]:
    """Numbers of the rows that several samples use, NOBODY for the others; and how many they are."""
    seen_U = np.full(rows, -1, np.int32)
    uses_U = np.zeros(rows, np.int32)
    for i in range(local_BF.shape[0]):
        for u in local_BF[i]:
            uses_U[u] += seen_U[u] != i
            seen_U[u] = i
    number_U = np.full(rows, NOBODY, np.int32)
    shared = 0
    for u in range(rows):
        if uses_U[u] > 1:
            number_U[u] = shared
            shared += 1
    return number_U, shared


@threaded
def _price_shared(
    blocks: int,
    state_U: U8,
    holders_UQ: U64,
    row_cost_n: F64,
    push_cost_n: F64,
    size_U: F64,
    number_U: I32,
    pull_Sn: F64,
    owner_S: I32,
    push_S: F64,
) -> None:
    """Each worker's pull of the rows that have numbers, their owners and the owners' pushes."""
    for k in prange(blocks):
        first, end = range_of(k, blocks, number_U.size)
        rows = state_U, holders_UQ, row_cost_n, push_cost_n, size_U, number_U
        _price_rows(first, end, *rows, pull_Sn, owner_S, push_S)


@kernel
def _price_rows(
    first: int,
    end: int,
    state_U: U8,
    holders_UQ: U64,
    row_cost_n: F64,
    push_cost_n: F64,
    size_U: F64,
    number_U: I32,
    pull_Sn: F64,
    owner_S: I32,
    push_S: F64,
) -> None:
    for u in range(first, end):
        s = number_U[u]
        if s >= 0:
            size = size_U[u] if size_U.size > 0 else 1.0
            owner_S[s] = _price(state_U[u], holders_UQ, u, row_cost_n, size, pull_Sn[s])
            if owner_S[s] >= 0:
                push_S[s] = size * push_cost_n[owner_S[s]]


@threaded
def _count_shared(blocks: int, local_BF: I32, number_U: I32, count_B1: I32) -> None:
    """How many shared rows each sample uses, after a first 0."""
    for k in prange(blocks):
        first, end = range_of(k, blocks, local_BF.shape[0])
        _count_block(local_BF[first:end], number_U, count_B1[first + 1 : end + 1])


@kernel
def _count_block(local_BF: I32, number_U: I32, count_B: I32) -> None:
    seen_U = np.full(number_U.size, -1, np.int32)
    for i in range(local_BF.shape[0]):
        for u in local_BF[i]:
            count_B[i] += number_U[u] >= 0 and seen_U[u] != i
            seen_U[u] = i


@threaded
def _price_alone(
    blocks: int,
    local_BF: I32,
    state_U: U8,
    holders_UQ: U64,
    row_cost_n: F64,
    push_cost_n: F64,
    size_U: F64,
    number_U: I32,
    first_B: I32,
    row_G: I32,
    alone_Bn: F64,
) -> None:
    """Lists the shared rows of each sample, and adds up the cost of the others."""
    for k in prange(blocks):
        first, end = range_of(k, blocks, local_BF.shape[0])
        its_row_G = row_G[first_B[first] : first_B[end]]
        its_alone_Bn = alone_Bn[first:end]
        rows = state_U, holders_UQ, row_cost_n, push_cost_n, size_U, number_U
        _price_block(local_BF[first:end], *rows, its_row_G, its_alone_Bn)


@kernel
def _price_block(
    local_BF: I32,
    state_U: U8,
    holders_UQ: U64,
    row_cost_n: F64,
    push_cost_n: F64,
    size_U: F64,
    number_U: I32,
    row_G: I32,
    alone_Bn: F64,
) -> None:
    seen_U = np.full(number_U.size, -1, np.int32)
    pull_n = np.empty(row_cost_n.size, np.float64)
    at = 0
    for i in range(local_BF.shape[0]):
        for u in local_BF[i]:
            if seen_U[u] == i:
                continue
            seen_U[u] = i
            if number_U[u] >= 0:
                row_G[at] = number_U[u]
                at += 1
                continue
            size = size_U[u] if size_U.size > 0 else 1.0
            owner = _price(state_U[u], holders_UQ, u, row_cost_n, size, pull_n)
            push = size * push_cost_n[owner] if owner >= 0 else 0.0
            for j in range(row_cost_n.size):
                alone_Bn[i, j] += pull_n[j] + push
            if owner >= 0:
                alone_Bn[i, owner] -= push


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


def _count(shared: Shared, at_B: I32) -> Users:
    rows, workers = shared.pull_Sn.shape
    users = Users(np.empty((rows, workers), np.int32), np.empty(rows, np.int32), np.empty(rows, np.int32))
    _count_samples(workers, shared, at_B, users.count_Sn)
    _count_workers(*users)
    return users


@threaded
def _count_samples(n: int, shared: Shared, at_B: I32, count_Sn: I32) -> None:
    for worker in prange(n):
        _count_at(worker, shared.first_B, shared.row_G, at_B, count_Sn)


@kernel
def _count_at(worker: int, first_B: I32, row_G: I32, at_B: I32, count_Sn: I32) -> None:
    """Counts one worker's samples, and stores the result only then: others store theirs beside it."""
    count_S = np.zeros(count_Sn.shape[0], np.int32)
    for i in range(at_B.size):
        if at_B[i] == worker:
            for g in range(first_B[i], first_B[i + 1]):
                count_S[row_G[g]] += 1
    for s in range(count_S.size):
        count_Sn[s, worker] = count_S[s]


@kernel
def _count_workers(count_Sn: I32, workers_S: I32, sum_S: I32) -> None:
    """Counts the workers that use each row, and adds up their numbers."""
    workers_S[:] = 0
    sum_S[:] = 0
    for s in range(count_Sn.shape[0]):
        for j in range(count_Sn.shape[1]):
            is_user = count_Sn[s, j] > 0
            workers_S[s] += is_user
            sum_S[s] += is_user * j


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


@threaded
def _total(blocks: int, shared: Shared, users: Users, at_B: I32, push_cost_n: F64, total_b: F64) -> None:
    """The batch cost, except for what no assignment can change, as a sum of blocks."""
    for k in prange(blocks):
        total_b[k] = _total_of(k, blocks, shared, users, at_B, push_cost_n)


@kernel
def _total_of(k: int, blocks: int, shared: Shared, users: Users, at_B: I32, push_cost_n: F64) -> float:
    total = 0.0
    first_sample, end_sample = range_of(k, blocks, at_B.shape[0])
    for i in range(first_sample, end_sample):
        total += shared.alone_Bn[i, at_B[i]]
    first, end = range_of(k, blocks, shared.owner_S.shape[0])
    for s in range(first, end):
        pull, later = (shared.value_share, FUTURE) if users.workers_S[s] > 1 else (1.0, 0.0)
        for j in range(push_cost_n.shape[0]):
            if users.count_Sn[s, j] > 0:
                total += pull * shared.pull_Sn[s, j] + later * push_cost_n[j]
        owner = shared.owner_S[s]
        if owner >= 0 and (users.workers_S[s] > 1 or users.count_Sn[s, owner] == 0):
            total += shared.push_S[s]
    return total


@threaded
def _marginal(
    blocks: int, shared: Shared, users: Users, at_B: I32, moving_k: I64, push_cost_n: F64, cost_kn: F64
) -> None:
    for k in prange(blocks):
        first, end = range_of(k, blocks, moving_k.shape[0])
        _add_up_block(shared, users, at_B, moving_k[first:end], push_cost_n, cost_kn[first:end])


@kernel
def _add_up_block(shared: Shared, users: Users, at_B: I32, moving_k: I64, push_cost_n: F64, cost_kn: F64) -> None:
    for q in range(moving_k.shape[0]):
        add_up(shared, users, moving_k[q], at_B[moving_k[q]], push_cost_n, cost_kn[q])


@kernel
def add_up(shared: Shared, users: Users, i: int, here: int, push_cost_n: F64, cost_n: F64) -> None:
    """Computes what sample i, now at worker here, adds to the batch cost on each worker."""
    workers = push_cost_n.shape[0]
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
            fixed = FUTURE * push_cost_n[single] + (shared.value_share - 1.0) * shared.pull_Sn[s, single]
            if single == owner:
                fixed += shared.push_S[s]
        elif others == 0 and owner >= 0:
            fixed = shared.push_S[s]
            cost_n[owner] -= fixed
        for j in range(workers):
            others_here = users.count_Sn[s, j] - (1 if j == here else 0)
            if others_here == 0:
                cost_n[j] += pull * shared.pull_Sn[s, j] + later * push_cost_n[j] + fixed

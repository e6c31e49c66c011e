"""Uses: which samples of a batch each worker trains, and which rows they use.

Legend: b samples of a micro-batch, B samples of the batch, F keys per sample, U distinct rows of the batch, n workers,
Q words of 64 workers each.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import prange

from dispatch.placement.arrays import I32, I64, U64
from dispatch.placement.rows.holders import bit_of, is_single, word_of, words_for
from infra.base.kernels import kernel, threaded


@dataclass(frozen=True)
class WorkerUse:
    """Which samples a worker trains and which rows they use."""

    samples: I64
    """Positions in the batch."""
    local: I32
    """Local numbers of the distinct rows; those that no other worker uses come first."""
    positions: I32
    """b×F positions in ``local``."""
    alone: int
    """How many rows no other worker uses."""


class Uses(NamedTuple):
    """What every worker uses, one worker after the other: plain arrays, so that kernels can take them whole."""

    samples: I64
    sample_starts: I64
    """Where each worker's samples begin, and the end; the other starts are the same."""
    local: I32
    local_starts: I64
    positions: I32
    alone_n: I64

    def of(self, worker: int, fields: int) -> WorkerUse:
        first = int(self.sample_starts[worker])
        end = int(self.sample_starts[worker + 1])
        return WorkerUse(
            self.samples[first:end],
            self.local[self.local_starts[worker] : self.local_starts[worker + 1]],
            self.positions[first * fields : end * fields],
            int(self.alone_n[worker]),
        )


def make_uses(n: int, local_BF: I32, assignment_B: I32, distinct: int) -> tuple[Uses, U64]:
    """The micro-batches of an assignment with the distinct rows of each; and who uses each row of the batch, [U, Q].

    distinct: rows of the batch, all of which are used.
    """
    if assignment_B.size and (assignment_B == assignment_B[0]).all():
        worker = int(assignment_B[0])
        users_UQ = np.zeros((distinct, words_for(n)), np.uint64)
        users_UQ[:, word_of(worker)] = bit_of(worker)
        return _use_alone(n, local_BF, worker, distinct), users_UQ
    samples, starts = _by_worker(assignment_B, n)
    found = np.empty(local_BF.size, np.int32)
    positions = np.empty(local_BF.size, np.int32)
    local_starts = np.zeros(n + 1, np.int64)
    alone_n = np.empty(n, np.int64)
    _number_rows(n, local_BF, samples, starts, distinct, found, positions, local_starts)
    users_UQ = np.zeros((distinct, words_for(n)), np.uint64)
    _add_users(found, starts * local_BF.shape[1], local_starts, users_UQ)
    local = np.empty(local_starts[n], np.int32)
    _put_alone_first(n, users_UQ, starts * local_BF.shape[1], found, local, local_starts, positions, alone_n)
    return Uses(samples, starts, local, local_starts, positions, alone_n), users_UQ


def _use_alone(n: int, local_BF: I32, worker: int, distinct: int) -> Uses:
    """The uses of a worker that trains the whole batch: its rows are numbered as those of the batch are."""
    is_after = np.arange(n + 1) > worker
    return Uses(
        samples=np.arange(local_BF.shape[0]),
        sample_starts=local_BF.shape[0] * is_after,
        local=np.arange(distinct, dtype=np.int32),
        local_starts=distinct * is_after,
        positions=local_BF.reshape(-1),
        alone_n=distinct * (np.arange(n) == worker),
    )


@kernel
def _by_worker(assignment_B: I32, n: int) -> tuple[I64, I64]:
    """Samples by worker, in batch order; and where each worker's begin."""
    starts = np.zeros(n + 1, np.int64)
    for worker in assignment_B:
        starts[worker + 1] += 1
    starts = np.cumsum(starts)
    at = starts.copy()
    samples = np.empty(assignment_B.size, np.int64)
    for i in range(assignment_B.size):
        samples[at[assignment_B[i]]] = i
        at[assignment_B[i]] += 1
    return samples, starts


@threaded
def _number_rows(
    n: int, local_BF: I32, samples: I64, starts: I64, distinct: int, found: I32, positions: I32, count_n1: I64
) -> None:
    """Lists the distinct rows of each worker's samples, and each key's position in the list, both from where its keys
    begin; and how many the rows are, after a first 0.
    """
    fields = local_BF.shape[1]
    for worker in prange(n):
        first = starts[worker] * fields
        end = starts[worker + 1] * fields
        its_samples = samples[starts[worker] : starts[worker + 1]]
        count_n1[worker + 1] = _number(local_BF, its_samples, distinct, found[first:end], positions[first:end])


@kernel
def _number(local_BF: I32, samples: I64, distinct: int, found: I32, positions: I32) -> int:
    """Lists the distinct rows of some samples in order of first use; returns how many they are."""
    position_U = np.full(distinct, -1, np.int32)
    count = 0
    at = 0
    for i in samples:
        for u in local_BF[i]:
            position = position_U[u]
            if position < 0:
                position = count
                position_U[u] = position
                found[count] = u
                count += 1
            positions[at] = position
            at += 1
    return count


@kernel
def _add_users(found: I32, key_starts: I64, count_n1: I64, users_UQ: U64) -> None:
    """Adds the users of each row; and turns numbers of rows into starts."""
    for worker in range(key_starts.size - 1):
        word = word_of(worker)
        bit = bit_of(worker)
        for u in found[key_starts[worker] : key_starts[worker] + count_n1[worker + 1]]:
            users_UQ[u, word] |= bit
        count_n1[worker + 1] += count_n1[worker]


@threaded
def _put_alone_first(
    n: int, users_UQ: U64, key_starts: I64, found: I32, local: I32, local_starts: I64, positions: I32, alone_n: I64
) -> None:
    """Lists the rows of each worker that no other one uses before the others, one worker after the other."""
    for worker in prange(n):
        its_local = local[local_starts[worker] : local_starts[worker + 1]]
        first = key_starts[worker]
        its_positions = positions[first : key_starts[worker + 1]]
        alone_n[worker] = _order(users_UQ, found[first : first + its_local.size], its_local, its_positions)


@kernel
def _order(users_UQ: U64, found: I32, local: I32, positions: I32) -> int:
    """Lists the rows found that no other worker uses before the others, in order; returns how many they are."""
    is_alone = np.empty(local.size, np.bool_)
    alone = 0
    for k in range(local.size):
        is_alone[k] = is_single(users_UQ, found[k])
        alone += is_alone[k]
    moved = np.empty(local.size, np.int32)
    next_alone = 0
    next_shared = alone
    for k in range(local.size):
        if is_alone[k]:
            moved[k] = next_alone
            next_alone += 1
        else:
            moved[k] = next_shared
            next_shared += 1
        local[moved[k]] = found[k]
    if 0 < alone < local.size:
        for at in range(positions.size):
            positions[at] = moved[positions[at]]
    return alone

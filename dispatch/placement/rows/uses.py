"""Uses: which samples of a batch each worker trains, and which rows they use.

Legend: b samples of a micro-batch, B samples of the batch, F keys per sample, U distinct rows of the batch, n workers,
Q words of 64 workers each.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dispatch.placement.arrays import I32, I64, U64
from dispatch.placement.rows.holders import bit_of, is_single, word_of
from infra.base.kernels import kernel


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


def make_uses(n: int, local_BF: I32, assignment_B: I32, users_UQ: U64) -> Uses:
    """The micro-batches of an assignment, and the distinct rows of each."""
    samples, starts = _by_worker(assignment_B, n)
    return Uses(samples, starts, *_use_rows(local_BF, samples, starts, users_UQ))


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


@kernel
def _use_rows(local_BF: I32, samples: I64, starts: I64, users_UQ: U64) -> tuple[I32, I64, I32, I64]:
    """Distinct rows of each micro-batch, those that no other worker uses first; and each key's position among them."""
    n = starts.size - 1
    fields = local_BF.shape[1]
    distinct = users_UQ.shape[0]
    is_alone = np.empty(distinct, np.bool_)
    for u in range(distinct):
        is_alone[u] = is_single(users_UQ, u)
    local = np.empty(samples.size * fields, np.int32)
    positions = np.empty(samples.size * fields, np.int32)
    local_starts = np.zeros(n + 1, np.int64)
    alone_n = np.zeros(n, np.int64)
    seen_by = np.full(distinct, -1, np.int32)
    position = np.empty(distinct, np.int32)
    shared = np.empty(distinct, np.int32)
    for worker in range(n):
        first = local_starts[worker]
        alone = 0
        others = 0
        for i in samples[starts[worker] : starts[worker + 1]]:
            for f in range(fields):
                u = local_BF[i, f]
                if seen_by[u] != worker:
                    seen_by[u] = worker
                    if is_alone[u]:
                        position[u] = alone
                        local[first + alone] = u
                        alone += 1
                    else:
                        position[u] = others
                        shared[others] = u
                        others += 1
        local[first + alone : first + alone + others] = shared[:others]
        local_starts[worker + 1], alone_n[worker] = first + alone + others, alone
        at = starts[worker] * fields
        for i in samples[starts[worker] : starts[worker + 1]]:
            for f in range(fields):
                u = local_BF[i, f]
                positions[at] = position[u] if is_alone[u] else alone + position[u]
                at += 1
    return local[: local_starts[n]], local_starts, positions, alone_n


@kernel
def users_of(local_BF: I32, assignment_B: I32, distinct: int, words: int) -> U64:
    """The workers that use each row of the batch, [U, Q]."""
    users = np.zeros((distinct, words), np.uint64)
    for i in range(local_BF.shape[0]):
        word = word_of(assignment_B[i])
        bit = bit_of(assignment_B[i])
        for f in range(local_BF.shape[1]):
            users[local_BF[i, f], word] |= bit
    return users

"""Sets of workers as bits: bit j % 64 of word j // 64 represents worker j.

Legend: U rows, n workers, Q words of 64 workers each.
"""

import numpy as np

from dispatch.placement.arrays import I64, U64, Bool
from infra.base.kernels import kernel

WORD_BITS = 64
ONE = np.uint64(1)


def words_for(workers: int) -> int:
    """How many words are needed for that many workers."""
    return -(-workers // WORD_BITS)


def everybody(workers: int) -> U64:
    """The set of all workers, [Q]."""
    bits = np.zeros(words_for(workers) * WORD_BITS, np.uint8)
    bits[:workers] = 1
    return np.packbits(bits, bitorder="little").view("<u8").astype(np.uint64)


def only(worker_U: I64, workers: int) -> U64:
    """Sets of one worker each, [U, Q]."""
    sets_UQ = np.zeros((worker_U.size, words_for(workers)), np.uint64)
    sets_UQ[np.arange(worker_U.size), worker_U // WORD_BITS] = ONE << (worker_U % WORD_BITS).astype(np.uint64)
    return sets_UQ


def held_by(sets_UQ: U64, workers: int) -> Bool:
    """The sets as one boolean per row and worker, [U, n]."""
    worker_n = np.arange(workers)
    bits_Un = sets_UQ[:, worker_n // WORD_BITS] >> (worker_n % WORD_BITS).astype(np.uint64)
    return (bits_Un & ONE).astype(np.bool_)


@kernel
def word_of(worker: int) -> int:
    return worker >> 6


@kernel
def bit_of(worker: int) -> np.uint64:
    """The worker's bit in its word."""
    return ONE << np.uint64(worker & 63)


@kernel
def bit_at(word: np.uint64, number: int) -> np.uint64:
    """0 or 1."""
    return (word >> np.uint64(number)) & ONE


@kernel
def held(sets_UQ: U64, u: int, worker: int) -> np.uint64:
    """1 if the worker is in row u's set, 0 if not: a number, so that sums need no branch."""
    return bit_at(sets_UQ[u, word_of(worker)], worker & 63)


@kernel
def members_of(sets_UQ: U64, workers: int) -> I64:
    """The workers that are in any of the sets, ascending."""
    every_Q = np.zeros(sets_UQ.shape[1], np.uint64)
    for u in range(sets_UQ.shape[0]):
        for q in range(sets_UQ.shape[1]):
            every_Q[q] |= sets_UQ[u, q]
    members = np.empty(workers, np.int64)
    count = 0
    for worker in range(workers):
        if every_Q[word_of(worker)] & bit_of(worker):
            members[count] = worker
            count += 1
    return members[:count]


@kernel
def is_single(sets_UQ: U64, u: int) -> bool:
    """Whether row u's set has exactly one worker."""
    seen = False
    for q in range(sets_UQ.shape[1]):
        word = sets_UQ[u, q]
        if word != 0:
            if seen or (word & (word - ONE)) != 0:
                return False
            seen = True
    return seen


@kernel
def is_same(left_UQ: U64, right_UQ: U64, u: int) -> bool:
    """Whether row u's sets are equal."""
    different = np.uint64(0)
    for q in range(left_UQ.shape[1]):
        different |= left_UQ[u, q] ^ right_UQ[u, q]
    return bool(different == 0)


@kernel
def lowest_bit(word: np.uint64) -> np.uint64:
    return word & (~word + ONE)


@kernel
def worker_of(bit: np.uint64, word: int) -> int:
    """The worker that a bit of a word represents."""
    number = word * WORD_BITS
    while bit > ONE:
        bit >>= ONE
        number += 1
    return number

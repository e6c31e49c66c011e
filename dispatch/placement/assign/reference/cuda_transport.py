"""The CUDA solver's plain reference: the same rounds in numpy, so that the method can be tested without a GPU.

Legend: k samples, n workers.

Each round examines every sample again, where the kernel keeps what has not changed, and searches by Bellman-Ford, where
the kernel's Dijkstra may pick another one of equally short chains. Otherwise it does the same: place every sample at
its least cost + price; then, while a worker is over-full, find the shortest chain from any over-full worker to any
worker with room, raise prices until the chain is free, and move along it as many samples as are tied on every pair of
it.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dispatch.placement.arrays import F64, I32, I64, Bool
from dispatch.placement.assign.levels import level_places, level_strides


def solve_transport_cuda_reference(cost_kn: F64, capacity_n: I64) -> I32:
    """The worker of each sample such that no capacity is exceeded and the summed cost is least."""
    price_n = np.zeros(cost_kn.shape[1])
    at_k = np.empty(0, np.int64)
    for stride in level_strides(*cost_kn.shape):
        part_kn = cost_kn[::stride]
        at_k = _solve_level(part_kn, level_places(capacity_n, len(part_kn), len(cost_kn)), price_n)
    return at_k.astype(np.int32)


def _solve_level(cost_kn: F64, capacity_n: I64, price_n: F64) -> I64:
    workers = cost_kn.shape[1]
    at_k = _place_cheapest(cost_kn, price_n)
    room_n = capacity_n - np.bincount(at_k, minlength=workers)
    idle_n = np.zeros(workers, np.int64)
    idle_n[price_n.argmin()] = room_n.sum()
    room_n -= idle_n
    while (room_n < 0).any():
        least_nn, tied_nn = _best_moves(cost_kn, at_k, idle_n)
        distance_n, before_n = _bellman_ford(least_nn, price_n, room_n < 0)
        target = int(np.where(room_n > 0, distance_n, np.inf).argmin())
        price_n += np.maximum(0.0, distance_n[target] - distance_n)
        chain = [target]
        while before_n[chain[0]] >= 0:
            chain.insert(0, int(before_n[chain[0]]))
        pairs = list(pairwise(chain))
        amount = min(-room_n[chain[0]], room_n[target], *(tied_nn[pair] for pair in pairs))
        leaving = [_tied_samples(cost_kn, at_k, idle_n, least_nn, *pair)[:amount] for pair in pairs]
        for (a, b), samples in zip(pairs, leaving, strict=True):
            at_k[samples] = b
            if not len(samples):
                idle_n[[a, b]] += [-amount, amount]
        room_n[[chain[0], target]] += [amount, -amount]
    return at_k


def _place_cheapest(cost_kn: F64, price_n: F64) -> I64:
    """The least cost + price; among equals the first one counted from worker (sample mod n), which spreads them."""
    samples, workers = cost_kn.shape
    order_kn = (np.arange(samples)[:, None] + np.arange(workers)) % workers
    turned_kn = np.take_along_axis(cost_kn + price_n, order_kn, axis=1)
    at_k: I64 = order_kn[np.arange(samples), turned_kn.argmin(axis=1)]
    return at_k


def _best_moves(cost_kn: F64, at_k: I64, idle_n: I64) -> tuple[F64, I64]:
    """Per ordered pair, the least change of cost by a move, and how many samples or idle places achieve it."""
    workers = cost_kn.shape[1]
    least_nn = np.full((workers, workers), np.inf)
    tied_nn = np.zeros((workers, workers), np.int64)
    change_kn = cost_kn - cost_kn[np.arange(len(at_k)), at_k][:, None]
    for a in range(workers):
        if (at_k == a).any():
            least_nn[a] = change_kn[at_k == a].min(axis=0)
            tied_nn[a] = (change_kn[at_k == a] == least_nn[a]).sum(axis=0)
        if idle_n[a] > 0:
            tied_nn[a] = np.where(least_nn[a] >= 0.0, idle_n[a], tied_nn[a])
            least_nn[a] = np.minimum(least_nn[a], 0.0)
    return least_nn, tied_nn


def _tied_samples(cost_kn: F64, at_k: I64, idle_n: I64, least_nn: F64, a: int, b: int) -> NDArray[np.intp]:
    """The samples whose move from a to b changes the cost least; none if idle places move instead."""
    if idle_n[a] > 0 and least_nn[a, b] == 0.0:
        return np.empty(0, np.intp)
    return np.flatnonzero((at_k == a) & (cost_kn[:, b] - cost_kn[:, a] == least_nn[a, b]))


def _bellman_ford(least_nn: F64, price_n: F64, is_source_n: Bool) -> tuple[F64, NDArray[np.intp]]:
    distance_n = np.where(is_source_n, 0.0, np.inf)
    before_n = np.full(len(price_n), -1, np.intp)
    # rounding may leave a tight pair a hair below zero
    length_nn = np.maximum(least_nn + price_n - price_n[:, None], 0.0)
    while True:
        through_nn = distance_n[:, None] + length_nn
        nearer_n = through_nn.min(axis=0) < distance_n
        if not nearer_n.any():
            return distance_n, before_n
        before_n[nearer_n] = through_nn.argmin(axis=0)[nearer_n]
        distance_n[nearer_n] = through_nn.min(axis=0)[nearer_n]

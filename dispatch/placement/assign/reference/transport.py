"""The solver's plain reference: the same successive shortest paths, without optimisations.

Every round examines every sample for the best move of each ordered pair of workers, and finds the shortest chain by
Bellman-Ford, so neither prices nor lists have to be kept. For tests; far too slow for a run.
"""

import numpy as np
from numpy.typing import NDArray

from dispatch.placement.arrays import F64, I32, I64


def solve_transport_reference(cost_kn: F64, capacity_n: I64) -> I32:
    """The worker of each sample such that no capacity is exceeded and the summed cost is least."""
    at_k: I32 = cost_kn.argmin(axis=1).astype(np.int32)
    workers = cost_kn.shape[1]
    while True:
        room_n = capacity_n - np.bincount(at_k, minlength=workers)
        if (room_n >= 0).all():
            return at_k
        source = int((room_n < 0).argmax())
        best_nn, mover_nn = _best_moves(cost_kn, at_k)
        distance_n, before_n = _bellman_ford(best_nn, source)
        there = int(np.where(room_n > 0, distance_n, np.inf).argmin())
        while there != source:
            here = int(before_n[there])
            at_k[mover_nn[here, there]] = there
            there = here


def _best_moves(cost_kn: F64, at_k: I32) -> tuple[F64, NDArray[np.intp]]:
    workers = cost_kn.shape[1]
    best_nn = np.full((workers, workers), np.inf)
    mover_nn = np.full((workers, workers), -1, dtype=np.intp)
    for here in range(workers):
        samples = np.flatnonzero(at_k == here)
        if len(samples):
            change = cost_kn[samples] - cost_kn[samples, here][:, None]
            best_nn[here] = change.min(axis=0)
            mover_nn[here] = samples[change.argmin(axis=0)]
    return best_nn, mover_nn


def _bellman_ford(best_nn: F64, source: int) -> tuple[F64, NDArray[np.intp]]:
    workers = len(best_nn)
    distance_n = np.full(workers, np.inf)
    distance_n[source] = 0.0
    before_n = np.full(workers, -1, dtype=np.intp)
    for _ in range(workers):
        for here in range(workers):
            # the margin prevents rounding from creating a cycle of tied moves
            nearer = distance_n[here] + best_nn[here] < distance_n - 1e-9
            distance_n[nearer] = (distance_n[here] + best_nn[here])[nearer]
            before_n[nearer] = here
    return distance_n, before_n

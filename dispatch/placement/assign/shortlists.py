"""Where samples are while the exact solver moves them, and the best move from one worker to another.

Legend: k samples, n workers, L entries of a shortlist.

The best sample to move from a to b comes from a sorted shortlist per ordered pair, refilled by a scan when used up.
Entries are never searched for: one whose sample has left a is dropped when it reaches the front. (A heap would hold
every sample of a; nearly all of them would never be read.)
"""

from typing import NamedTuple

import numpy as np

from dispatch.placement.arrays import F64, I32, I64, Bool
from infra.base.kernels import kernel

SHORTLIST = 4
"""L: long enough that refills are rare, short enough that filling it costs little more than the scan."""


class Seats(NamedTuple):
    """The samples of worker a are seated[first_n[a] : first_n[a] + count_n[a]], in no order."""

    at_k: I32
    """Worker of each sample."""
    seated: I32
    first_n: I64
    count_n: I64
    place_k: I64
    """Index of each sample in `seated`."""


class Shortlists(NamedTuple):
    """Per ordered pair (a, b): the change of cost if a sample moves from a to b, best first."""

    change_nnL: F64
    sample_nnL: I32
    begin_nn: I32
    end_nn: I32
    """The list is [begin, end); entries whose sample has left a may still be in it."""
    bound_nn: F64
    """A sample of a that is not listed changes the cost by at least this; infinite if all are listed."""
    least_nn: F64
    """Change of the first listed sample that is still at a; infinite if a has none."""
    known_nn: Bool
    """Whether least and begin are up to date."""


@kernel
def seat(at_k: I32, capacity_n: I64, room_n: I64) -> Seats:
    """Seats every sample at its worker, which gets as many seats as it will ever need: those it fills or may fill."""
    workers = capacity_n.shape[0]
    first_n = np.zeros(workers + 1, dtype=np.int64)
    for j in range(workers):
        first_n[j + 1] = first_n[j] + capacity_n[j] + max(-room_n[j], 0)
    count_n = np.zeros(workers, dtype=np.int64)
    seated = np.empty(first_n[workers], dtype=np.int32)
    place_k = np.empty(at_k.shape[0], dtype=np.int64)
    for i in range(at_k.shape[0]):
        place_k[i] = first_n[at_k[i]] + count_n[at_k[i]]
        seated[place_k[i]] = i
        count_n[at_k[i]] += 1
    return Seats(at_k, seated, first_n, count_n, place_k)


@kernel
def empty_shortlists(workers: int) -> Shortlists:
    """Nothing listed and nothing known."""
    return Shortlists(
        np.empty((workers, workers, SHORTLIST), dtype=np.float64),
        np.empty((workers, workers, SHORTLIST), dtype=np.int32),
        np.zeros((workers, workers), dtype=np.int32),
        np.zeros((workers, workers), dtype=np.int32),
        np.full((workers, workers), -np.inf, dtype=np.float64),
        np.empty((workers, workers), dtype=np.float64),
        np.zeros((workers, workers), dtype=np.bool_),
    )


@kernel
def refresh(a: int, cost_kn: F64, seats: Seats, lists: Shortlists) -> None:
    """Determines the best move from a to every other worker."""
    workers = cost_kn.shape[1]
    for b in range(workers):
        if lists.known_nn[a, b] or a == b:
            continue
        begin = lists.begin_nn[a, b]
        end = lists.end_nn[a, b]
        while begin < end and seats.at_k[lists.sample_nnL[a, b, begin]] != a:
            begin += 1
        lists.begin_nn[a, b] = begin
        if begin == end and lists.bound_nn[a, b] < np.inf:
            _refill(a, b, cost_kn, seats, lists)
            begin = 0
        lists.least_nn[a, b] = lists.change_nnL[a, b, begin] if begin < lists.end_nn[a, b] else np.inf
        lists.known_nn[a, b] = True


@kernel
def _refill(a: int, b: int, cost_kn: F64, seats: Seats, lists: Shortlists) -> None:
    """Lists the L best samples to move from a to b."""
    lists.begin_nn[a, b] = 0
    lists.end_nn[a, b] = 0
    lists.bound_nn[a, b] = np.inf
    for place in range(seats.first_n[a], seats.first_n[a] + seats.count_n[a]):
        sample = seats.seated[place]
        change = cost_kn[sample, b] - cost_kn[sample, a]
        if change < lists.bound_nn[a, b]:
            _enlist(a, b, sample, change, lists)


@kernel
def _enlist(a: int, b: int, sample: int, change: float, lists: Shortlists) -> None:
    """Inserts after its equals; an entry that falls off the end lowers the bound of unlisted samples."""
    change_L = lists.change_nnL[a, b]
    sample_L = lists.sample_nnL[a, b]
    begin = lists.begin_nn[a, b]
    end = lists.end_nn[a, b]
    if end == SHORTLIST and begin > 0:
        for q in range(begin, end):
            change_L[q - begin] = change_L[q]
            sample_L[q - begin] = sample_L[q]
        begin, end = 0, end - begin
    elif end == SHORTLIST:
        end -= 1
    q = end
    while q > begin and change_L[q - 1] > change:
        change_L[q] = change_L[q - 1]
        sample_L[q] = sample_L[q - 1]
        q -= 1
    change_L[q] = change
    sample_L[q] = sample
    lists.begin_nn[a, b], lists.end_nn[a, b] = begin, end + 1
    if begin == 0 and end + 1 == SHORTLIST:
        lists.bound_nn[a, b] = change_L[end]


@kernel
def move(sample: int, b: int, cost_kn: F64, seats: Seats, lists: Shortlists) -> None:
    """Moves the sample to b, where it becomes a candidate for every further move."""
    a = seats.at_k[sample]
    seats.count_n[a] -= 1
    last = seats.seated[seats.first_n[a] + seats.count_n[a]]
    seats.seated[seats.place_k[sample]] = last
    seats.place_k[last] = seats.place_k[sample]
    seats.place_k[sample] = seats.first_n[b] + seats.count_n[b]
    seats.seated[seats.place_k[sample]] = sample
    seats.count_n[b] += 1
    seats.at_k[sample] = b
    for c in range(cost_kn.shape[1]):
        if lists.known_nn[a, c] and a != c and lists.end_nn[a, c] > lists.begin_nn[a, c]:
            lists.known_nn[a, c] = lists.sample_nnL[a, c, lists.begin_nn[a, c]] != sample
        change = cost_kn[sample, c] - cost_kn[sample, b]
        if c != b and change < lists.bound_nn[b, c]:
            _enlist(b, c, sample, change, lists)
            lists.known_nn[b, c] = False

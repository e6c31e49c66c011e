"""Elastic capacity: shares of the batch that let the slowest worker finish soonest.

Any split of a batch gives the same gradient, so a worker behind a slow link or with a slow processor may train fewer
samples. Shares start from the links alone. After every step each worker's time (samples × compute + rows × transfer,
and the cost of taking part) shows who was late, and shares move a little from the late to the early ones. Nothing has
to be linear for that: it settles where all take equally long (slow links a little less, see THRIFT) or are at a bound.
Who takes part at all is decided by ``dispatch/placement/capacity/participation.py``.

``dispatch/placement/capacity/knowledge.py`` holds what is known about the workers. Without measurements the shares are
a pure function of the sequence of batches.

Legend: n workers.
"""

from dataclasses import dataclass, field

import numpy as np

from dispatch.placement.arrays import F64, I64, Bool
from dispatch.placement.capacity.bounds import ShareBounds
from dispatch.placement.capacity.knowledge import DAMPING, WorkerKnowledge, damped
from dispatch.placement.capacity.level import level
from dispatch.placement.capacity.participation import TRY_SHARE, Participation, SetChange
from dispatch.placement.capacity.step_model import DenseLoad, StepModel, sole_of
from dispatch.placement.errors import Infeasible

SPARE = 1.5
"""Factor of room in the cache for micro-batches that have fewer rows in common than the last ones."""
THRIFT = 0.3
"""A link that is x times slower is given x^-THRIFT of the time: its rows also keep the others waiting, and the fewer
rows use slow links, the fewer everyone moves (both cost and time fell up to here on Criteo and Avazu).
"""
LOWEST_SHARE = 1e-3
"""Least share from which a worker without a lower bound can still recover."""
GAIN = 0.1
"""How far shares follow the times in one step: a worker twice as late loses GAIN · ln 2 of its share."""
SHORTEST = 1 / 16
"""Share of the mean time; a worker that takes less does not count as earlier."""


@dataclass(frozen=True)
class ElasticTerms:
    """What elastic capacities depend on, besides links and measured times."""

    shares: ShareBounds = field(default_factory=ShareBounds)
    dense: DenseLoad = field(default_factory=DenseLoad)
    """The dense weights that move because a worker takes part."""
    choice: Participation | None = None
    """Chooses who takes part; None: only the model does, where the bounds allow it."""


BY_MODEL = ElasticTerms()


class Elastic:
    """Adjusts capacities slowly, step after step."""

    def __init__(
        self,
        row_cost_n: F64,
        cache_rows_n: I64,
        shares: ShareBounds,
        dense: DenseLoad | None = None,
        choice: Participation | None = None,
        server_cost: float = 0.0,
        push_cost_n: F64 | None = None,
    ) -> None:
        """shares, dense, choice: see ElasticTerms. server_cost, push_cost_n: see Decider."""
        n = row_cost_n.size
        self._cache_rows_n = cache_rows_n
        self._least_n, self._largest_n = shares.of(n)
        self._known = WorkerKnowledge(row_cost_n, cache_rows_n, dense or DenseLoad(), server_cost, push_cost_n)
        self.participation = choice or Participation(self._least_n == 0.0)
        self._model: StepModel | None = None
        """The newest one."""
        self._batch = 0.0
        self._rows_a_sample = 0.0
        self._share_n = 1.0 / self._known.link_cost_n
        self._time_n = np.zeros(n)
        """Time of each worker's step, without the fixed part."""
        self._followed_n = np.full(n, False)
        """Workers for which it is known."""

    def charge(self, row_cost_n: F64, server_cost: float = 0.0, push_cost_n: F64 | None = None) -> None:
        """Sets the cost of links from now on; shares follow slowly."""
        self._known.row_cost_n = row_cost_n
        self._known.push_cost_n = row_cost_n if push_cost_n is None else push_cost_n
        self._known.server_cost = server_cost

    def bound(self, shares: ShareBounds) -> None:
        """Sets the bounds of shares from now on; a parked worker that must not be parked takes part again."""
        self._least_n, self._largest_n = shares.of(self._share_n.size)
        self.participation.allow(self._least_n == 0.0)

    def choose_members(self, samples: int, fields: int, step: int = 0) -> SetChange | None:
        """Decides who takes part in the next step, of that many samples; returns the change if there is one."""
        self._batch = damped(self._batch, samples)
        if self.participation.may_skip(step):
            return None
        usual = round(self._batch)
        bounds_2n = bounds(usual, self._expected_hold(usual, fields), self._least_n, self._largest_n)
        before_n = self.participation.taking_part_n
        model = self._model = self._known.model(usual, fields, *bounds_2n, before_n)
        change = self.participation.choose(model, step)
        if change is not None:
            self._call_back(change, before_n)
        return change

    def ring_seconds(self, hub_seconds: float) -> float:
        """How long a step should take all workers in a ring, if it takes so long now, over the hub; infinite: not
        known.
        """
        if self._model is None or not self._model.is_in_seconds:
            return float("inf")
        beyond = max(0.0, hub_seconds - self._model.at_most(self.participation.taking_part_n))
        return self._model.in_ring().time_of(np.full(self._share_n.size, True)) + beyond

    def sole(self, samples_n: I64) -> int | None:
        """The worker that takes part in this step with all others parked and none of them tried or helping out."""
        sole = sole_of(self.participation.taking_part_n)
        return None if sole is None or samples_n.sum() > samples_n[sole] else sole

    def capacities(self, samples: int, fields: int) -> I64:
        """As many places as samples, each worker's within its bounds and what its cache is expected to hold."""
        hold_n = self._expected_hold(samples, fields)
        sole = sole_of(self.participation.taking_part_n)
        is_bound = self._largest_n[sole] * samples < samples * hold_n.size if sole is not None else True
        if sole is None or is_bound or hold_n[sole] < samples or self.participation.tried_n.any():
            return self._choose(samples, hold_n)
        capacity_n = np.zeros(hold_n.size, np.int64)
        capacity_n[sole] = samples
        return capacity_n

    def safe_capacities(self, samples: int, fields: int) -> I64:
        """The same within what the caches certainly hold, even if no two samples had a row in common."""
        return self._choose(samples, self._cache_rows_n // fields)

    def measure(self, worker: int, samples: int, compute_seconds: float, row_seconds: float) -> None:
        """Records a worker's report: seconds of compute for that many samples, seconds of a row
        over the fastest link.
        """
        if samples > 0 and compute_seconds >= 0.0 and row_seconds > 0.0:
            self._time_n *= 1.0 if self._known.is_measured else row_seconds
            is_alone = sole_of(self.participation.taking_part_n) == worker and not self.participation.tried_n.any()
            self._known.measure(worker, samples, compute_seconds, row_seconds, is_alone)

    def measure_step(self, step: int, seconds: float) -> None:
        """Records how long a whole step took, from the end of the one before."""
        self.participation.measure(step, seconds)

    def measure_decision(self, seconds: float) -> None:
        """Records how long the newest decision took; choosing by the model alone ignores it,
        because it uses no clock.
        """
        if self.participation.goes_by_clock:
            self._known.measure_decision(seconds, sole_of(self.participation.taking_part_n) is not None)

    def watch(self, step: int, rows_U: I64, size_U: F64 | None = None) -> None:
        """Records the distinct rows of a step's batch, to estimate what a worker alone would move of them.

        size_U: see Situation.
        """
        if sole_of(self.participation.taking_part_n) is None:
            self._known.watch(step, rows_U, size_U)

    @property
    def push_ratio_n(self) -> F64:
        """How many rows cross each worker's downlink while one crosses its uplink."""
        return self._known.push_ratio_n

    def shift_shares(self, samples_n: I64, distinct_n: I64, moved_n: F64, shared_n: F64 | None = None) -> None:
        """Shifts the shares by how long each worker took for these samples, of distinct rows.

        moved_n: whole rows in the direction that takes longer, in rows over its downlink; the other direction runs in
        parallel. shared_n: in the direction in which it moved more of them; None: that is the same.
        """
        self._expect(samples_n, distinct_n)
        self._known.learn_rows(samples_n, moved_n, shared_n)
        if sole_of(self.participation.taking_part_n) is not None:
            self._followed_n = self.participation.taking_part_n
            return  # one worker has all shares
        now_n = moved_n * self._known.row_n + samples_n * self._known.compute.sample_n
        self._time_n = np.where(self._followed_n, self._time_n + DAMPING * (now_n - self._time_n), now_n)
        self._followed_n = self.participation.taking_part_n
        self._share_n[self._followed_n] = self._shifted(self._followed_n)
        # the share of a worker at a bound must not drift without limit
        low_n = np.maximum(self._least_n / 2, LOWEST_SHARE)
        self._share_n = np.clip(self._share_n, low_n, np.maximum(self._largest_n * 2, low_n))

    def _shifted(self, members_n: Bool) -> F64:
        """The members' shares, moved from the late to the early: a worker has the time that its fixed part leaves."""
        time_n = self._time_n[members_n]
        fixed_n = self._known.fixed_n[members_n]
        shortest = max(float(time_n.mean()) * SHORTEST, 1e-12)
        level = float((time_n + fixed_n).mean())
        left_n = np.maximum(level - fixed_n, max(level * SHORTEST, 1e-12))
        late_n = np.log(np.maximum(time_n, shortest) / left_n) + THRIFT * np.log(self._known.link_cost_n[members_n])
        share_n = self._share_n[members_n] * np.exp(GAIN * (late_n.mean() - late_n))
        return np.asarray(share_n * members_n.size / share_n.sum())

    def _call_back(self, change: SetChange, before_n: Bool) -> None:
        """Gives workers that take part again the shares that the model expects, relative to those who stay."""
        stay_n = before_n & ~change.parked_n
        back_n = ~before_n & ~change.parked_n
        expected_n = change.model.samples_in(change.time)
        staying = float(expected_n[stay_n].sum())
        unit = float(self._share_n[stay_n].sum()) / staying if staying else before_n.size / change.model.samples
        self._share_n[back_n] = np.maximum(expected_n[back_n] * unit, LOWEST_SHARE)

    def _choose(self, samples: int, hold_n: I64) -> I64:
        """Chooses among the workers that take part and those that are tried; among all if these
        cannot hold the batch.
        """
        least_n, most_n = bounds(samples, hold_n, self._least_n, self._largest_n)
        taking_part_n = self.participation.taking_part_n
        tried_n = self.participation.tried_n
        free = (samples - int(least_n.sum())) // max(1, int(tried_n.sum()))
        wanted = max(1, int(TRY_SHARE * samples / hold_n.size))
        tries_n = np.where(tried_n, np.minimum(min(wanted, free), most_n), 0)
        if int(most_n[taking_part_n].sum() + tries_n.sum()) >= samples:
            least_n, most_n = (np.where(taking_part_n, bound_n, tries_n) for bound_n in (least_n, most_n))
        return round_to(fill(self._share_n, samples, least_n, most_n), samples, most_n)

    def _expected_hold(self, samples: int, fields: int) -> I64:
        """Samples that each cache is expected to hold; an equal share is always tried, because it usually fits."""
        rows_a_sample = min(self._rows_a_sample or fields, fields)
        hold_n = (self._cache_rows_n / rows_a_sample).astype(np.int64)
        return np.maximum(hold_n, -(-samples // hold_n.size))

    def _expect(self, samples_n: I64, distinct_n: I64) -> None:
        """Updates the rows per sample: up at once, down slowly.

        Only workers with at least an equal share count: few samples hardly have a row in common, and fit anywhere.
        """
        many_n = samples_n >= max(1.0, float(samples_n.mean()))
        rows_a_sample = float((distinct_n[many_n] / samples_n[many_n]).max(initial=0.0)) * SPARE
        self._rows_a_sample = max(rows_a_sample, damped(self._rows_a_sample, rows_a_sample))


def bounds(samples: int, hold_n: I64, least_share_n: F64, largest_share_n: F64) -> tuple[I64, I64]:
    """Fewest and most samples of each worker; raises an error if caches and bounds leave no room for the batch."""
    equal = samples / hold_n.size
    # a little slack, so that a bound of whole samples is not lost to rounding
    most_n = np.minimum(np.minimum(np.ceil(equal * largest_share_n - 1e-9).astype(np.int64), samples), hold_n)
    least_n = np.minimum((equal * least_share_n + 1e-9).astype(np.int64), most_n)
    if int(most_n.sum()) < samples:
        raise Infeasible(
            f"cannot share out {samples} samples; caches and bounds hold at most {most_n.tolist()}; expected "
            f"{samples} in all, got {most_n.sum()}; raise dispatch.cache_rows or dispatch.largest_share, or lower "
            f"stream.batch"
        )
    return least_n, most_n


def fill(share_n: F64, total: int, least_n: I64, most_n: I64) -> F64:
    """Parts of total in proportion to the shares, as far as the bounds allow."""
    high = level(total, np.zeros(share_n.size), 1 / share_n, least_n, most_n)
    return np.clip(high * share_n, least_n, most_n).astype(np.float64)


def round_to(exact_n: F64, total: int, most_n: I64) -> I64:
    """Whole numbers that add up to total, each next to its exact value; the largest remainders are rounded up."""
    whole_n = np.floor(exact_n + 1e-6).astype(np.int64)
    order = np.argsort(-(exact_n - whole_n), kind="stable")
    while (missing := total - int(whole_n.sum())) > 0:
        room = order[whole_n[order] < most_n[order]][:missing]
        whole_n[room] += 1
    return whole_n

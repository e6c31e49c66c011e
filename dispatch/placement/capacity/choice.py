"""Chooses who takes part, by the clock: the model proposes a set, and measured steps confirm or reject it.

A run begins with one worker, the fastest alone by its link: that is what a user would try first, its steps show how
long compute takes undisturbed, and no dense weights move. As soon as two steps are measured, other sets may be tried:
the 2, 4, 8 … fastest, all, and the best that the model knows. A set is tried if it could be clearly faster
(MIN_IMPROVEMENT), and kept if the clock says so; otherwise the run returns to the set before.

The expected time of a set:
- If it, or one like it, was measured: the measured time, while it is fresh. Later the whole machine may have become
  faster or slower, so an old time is not used against a set that has won, unless that set has become slower itself.
- Otherwise: the model's best case, if its size is one of the few that a run begins with, or if there is time for a
  failed trial. In all other cases, the model's time plus the model's error, interpolated between the next smaller and
  the next larger sets that were measured.
- If a set has become slower, and none of its workers is in the other set: at best what the slower one took before. The
  model may not know why it is slower, nor whom that concerns; the clock tells.

All trials together may cost EXPLORED of the run's time, and the time of a few steps more at its beginning. A trial that
has used up its part ends at once. The first worker, which was alone while its caches filled, is tried once more in any
case, if the model expects it to win back what that costs. A set that was measured and left is tried again at intervals
that double (``set_times.py``), or when a link or the batch has changed.

Legend: n workers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dispatch.placement.arrays import I64, Bool
from dispatch.placement.capacity.participation import MIN_IMPROVEMENT, Participation, SetChange
from dispatch.placement.capacity.set_times import LEFT_OUT, MEASURED, SAME_INPUT, SLOWED, SetTime, SetTimes, Stay
from dispatch.placement.capacity.step_model import StepModel

EXPLORED = 0.01
"""Share of the run's time that trials of sets may cost."""
TRIED = 0.01
"""The same of tries of parked workers."""
FIRST_STEPS = 8
"""Time, in steps, that trials may cost beyond that at first, so that a run finds its set soon."""
AT_FIRST = 64
"""Steps for which that holds: from the start of a generation, or after the current set has become slower."""
PROMISING = 2.0
"""A set of a size that doubles is tried once at first, whatever other trials have cost, if it should be so many times
as fast as the fastest.
"""
PROMISED = 4
"""Time, in steps of the set before, that such a trial may cost in any case."""
WON_BACK = 64
"""After the current set has become slower, trials may cost what its former time would win back in so many steps: rows
and weights that its workers own may have to leave over the very link that is slow.
"""
FAR_LONGER = 2.5
"""A set whose steps take this many times as long as before is left for other workers, if these are not known to be as
slow.
"""
TRIAL_STEPS = LEFT_OUT + MEASURED
"""Least number of steps of a trial."""
SETTLED_LOOK = 32
"""Steps between two comparisons of candidates, once the current set has won and its time has settled."""
LOOK_SECONDS = 0.003
"""About what a comparison takes, with eight workers."""
LOOKED = 0.005
"""Share of the time that comparisons may take while nothing of what decides about candidates has changed. There still
are some: trials that were too dear may have become affordable.
"""
AS_BEFORE = 0.1
"""Largest difference, as a share of a step, between what is known now and what was known then."""
SLOWED_LOOK = 8
"""The same while its steps take longer than they did."""
ALIKE = 0.05
"""Largest relative difference in links and expected times at which the measured time of one set is used for another."""
UNKNOWN_TRY = 0.5
"""Assumed extra time of a step in which parked workers are tried, as a share of a step, until it is measured."""
TRY_DAMPING = 0.25
"""Weight of the newest step with tries in the cost of such a step."""
SHORTEST = 1e-9
"""Seconds; avoids division by 0."""
LONGEST_UNDER_WAY = 64
"""Most decided steps whose sets are remembered until they are measured."""


class Look(NamedTuple):
    """A comparison of candidates that the current set has won."""

    step: int
    seconds: float
    """What its steps took."""
    model: StepModel
    could_pay: bool
    """Whether a larger set could have been clearly faster."""


class MeasuredChoice(Participation):
    """Chooses who takes part, step after step, and learns how long steps took."""

    goes_by_clock = True
    try_cost = TRIED

    def __init__(self, may_park_n: Bool, names: Sequence[str], times: SetTimes) -> None:
        super().__init__(may_park_n)
        self._names = names
        self._times = times
        self._stay: Stay | None = None
        self._stay_of: dict[int, Stay] = {}
        """The stays of steps that were decided and are not measured yet."""
        self._tried: set[int] = set()
        """Those of them in which parked workers were tried."""
        self._look: Look | None = None
        """The newest comparison that the current set has won; None: it has not won one since its steps settled."""
        self._first_until = 0
        """The last step up to which trials may cost FIRST_STEPS more."""
        self._first_lost = 0.0
        """Seconds that trials have cost in that period."""
        self._elapsed = 0.0
        """Seconds of all measured steps."""
        self._lost = 0.0
        """Seconds that all trials have cost."""
        self._change_seconds: float | None = None
        """Extra seconds of the first steps of a set over its later ones; None: not measured yet."""
        self._fast = float("inf")
        """Seconds of a step before they became longer; infinite: they did not, or long ago."""
        self._slow_since = 0
        """The step at which that was noticed."""
        self._slowed_n = self.taking_part_n
        """Who took part then."""
        self._leaves = 0
        """How often they have been left since."""

    def allow(self, may_park_n: Bool) -> None:
        """Sets who may be parked from now on; if others take part for that reason, their set is measured again."""
        super().allow(may_park_n)
        if self._stay is not None and self._names_of(self.taking_part_n) != self._stay.members:
            self._stay = None

    def choose(self, model: StepModel, step: int = 0) -> SetChange | None:
        """Decides about the next step; returns the change if there is one."""
        if not self._may_park_n.any() or not model.samples:
            return None
        change = self._choose(model, step)
        self._note(step)
        return change

    @property
    def is_settled(self) -> bool:
        has_won = not self._may_park_n.any() or (self._stay is not None and self._stay.is_settled_winner)
        return has_won and not self.tried_n.any()

    def may_skip(self, step: int) -> bool:
        """Once a set has won, candidates are looked at every few steps."""
        if self._stay is None or not self._stay.is_settled_winner or self._tries_n.any():
            return False
        if step % SETTLED_LOOK == 0 or (step % SLOWED_LOOK == 0 and (self._is_slow or self._stay.has_slowed)):
            return False
        self.tried_n = np.full(self._may_park_n.size, False)
        self._idle_n += ~self.taking_part_n
        self._note(step)
        return True

    def _note(self, step: int) -> None:
        """Remembers which stay a decided step belongs to, until it is measured."""
        if self._stay is not None:
            self._stay_of[step] = self._stay
        if self.tried_n.any():
            self._tried.add(step)
        while len(self._stay_of) > LONGEST_UNDER_WAY:
            forgotten = next(iter(self._stay_of))
            del self._stay_of[forgotten]
            self._tried.discard(forgotten)

    def measure(self, step: int, seconds: float) -> None:
        """Records how long a step took, from the end of the one before."""
        stay = self._stay_of.pop(step, None)
        has_tries = step in self._tried
        self._tried.discard(step)
        if stay is None or stay is not self._stay:
            return
        if has_tries:
            slower = max(0.0, seconds - stay.seconds)
            before = slower if self._try_seconds is None else self._try_seconds
            self._try_seconds = before + TRY_DAMPING * (slower - before)
            return
        stay.add(step, seconds)
        self._elapsed += seconds
        is_changing = step < stay.began + LEFT_OUT
        lost = max(0.0, seconds - min(stay.rival, stay.known if is_changing else float("inf")))
        self._lost += lost
        if step <= self._first_until:
            self._first_lost += lost

    def _choose(self, model: StepModel, step: int) -> SetChange | None:
        self.tried_n = np.full(self._may_park_n.size, False)
        if self._stay is None:
            return self._begin(model, step)
        if model.time_of(self.taking_part_n) == float("inf"):
            best_n = model.best(self._may_park_n, self.taking_part_n)
            return self._move(model, step, best_n, model.time_of(best_n), "the batch did not fit into the caches")
        if not self._stay.is_known:
            return None
        now = self._remember(model, step)
        self._measure_change()
        self._notice_slowing(step)
        if self._stay.is_trial and now > self._stay.rival and self._stay.may_improve:
            return None
        if self._stay.is_returning:
            return None
        if self._is_as_it_was(model, step, now):
            self._stay.win()
            self._try_parked(model, now)
            return None
        times = [(self._expect(model, step, members_n), members_n) for members_n in self._candidates(model)]
        expected, best_n = min(times, key=lambda one: one[0], default=(float("inf"), self.taking_part_n))
        margin = 0.0 if self._stay.is_trial else MIN_IMPROVEMENT
        if expected >= (1 - margin) * now:
            self._stay.win()
            is_settled = self._stay.is_settled_winner and step > self._first_until
            self._look = Look(step, now, model, self._could_pay_now(model, now)) if is_settled else None
            self._try_parked(model, now)
            return None
        known = self._known(model, best_n)
        is_measured = known is not None and known.seconds <= max(now, expected)
        reason = "was faster when measured" if is_measured else "expected to be faster"
        return self._move(model, step, best_n, expected, reason)

    def _is_as_it_was(self, model: StepModel, step: int, now: float) -> bool:
        """Whether the current set has won lately against the candidates that there would be, and nothing of what was
        known then has changed by more than steps differ by chance.
        """
        look = self._look
        if look is None or self._is_slow or (step - look.step) * now * LOOKED >= LOOK_SECONDS:
            return False
        is_as_fast = abs(now - look.seconds) <= AS_BEFORE * look.seconds
        return is_as_fast and model.is_like(look.model, AS_BEFORE, look.seconds)

    def _begin(self, model: StepModel, step: int) -> SetChange | None:
        """The first set of a generation: the fastest known one, or one worker, or the one that the model prefers."""
        known = self._times.within(self._names)
        first_n = model.best_sole(self._may_park_n, self.taking_part_n)
        reason = "one worker is measured first"
        if known:
            fastest = min(known, key=lambda members: known[members].seconds)
            first_n = self._set_of(fastest)
            reason = "was the fastest before"
        if first_n is None or model.time_of(first_n) == float("inf"):
            first_n = model.best(self._may_park_n, self.taking_part_n)
            reason = "expected to be the fastest"
        change = self._move(model, step, first_n, model.time_of(first_n), reason)
        self._first_until = step + AT_FIRST
        assert self._stay is not None
        self._stay.is_first = True
        self._stay.rival = float("inf")
        return change if not self.taking_part_n.all() else None

    def _notice_slowing(self, step: int) -> None:
        """If the present set has become slower, others are tried for AT_FIRST steps, or until one is clearly faster."""
        assert self._stay is not None
        if self._fast < float("inf"):
            slowed = self._times.of(self._names_of(self._slowed_n))
            has_found = slowed is not None and SLOWED * self._stay.seconds < slowed.seconds
            if has_found or step > self._slow_since + AT_FIRST:
                self._fast = float("inf")
                self._stay.accept()
        if self._stay.has_slowed and self._fast == float("inf"):
            self._fast = self._stay.least
            self._slowed_n = self.taking_part_n
            self._slow_since = step
            self._first_until = step + AT_FIRST
            self._first_lost = 0.0
            self._leaves = 0

    @property
    def _is_slow(self) -> bool:
        """Whether steps take longer than they did lately, with the set of then or with another that is tried since."""
        return self._stay is not None and self._stay.seconds > SLOWED * self._fast

    @property
    def _is_far_slower(self) -> bool:
        """Whether they take so much longer that it is hardly the machine as a whole: a shared one wanders by half."""
        return self._stay is not None and self._stay.seconds > FAR_LONGER * self._fast

    def _measure_change(self) -> None:
        """What changing to the present set cost, once its other steps are known."""
        assert self._stay is not None
        if (seconds := self._stay.change_seconds()) is not None:
            before = seconds if self._change_seconds is None else self._change_seconds
            self._change_seconds = before + TRY_DAMPING * (seconds - before)

    def _move(self, model: StepModel, step: int, members_n: Bool, expected: float, reason: str) -> SetChange:
        """Begins a stay with these members at this step."""
        before = float("inf")
        rival = float("inf")
        if self._stay is not None and self._stay.is_known:
            before = self._stay.seconds
            rival = min(before, self._fastest)
            self._times.leave(self._stay.members)
            self._leaves += self._stay.members == self._names_of(self._slowed_n)
        known = self._known(model, members_n)
        if known is not None and known.seconds <= rival and known.is_fresh(step):
            rival = float("inf")  # it goes back to what is known to be the fastest, which is no trial
        # one worker may have to wait for all that others own; it is given the time to show whether that pays
        is_alone = int(members_n.sum()) == 1 and before < float("inf")
        is_clear = is_alone and (SLOWED * expected < before or self._was_cold(members_n, expected))
        least = PROMISED * before if known is None and step <= self._first_until and before < float("inf") else 0.0
        self._stay = Stay(
            self._names_of(members_n),
            step,
            is_first=False,
            rival=rival,
            may_lose=max(self._may_lose(step), WON_BACK * (before - expected) if is_clear else 0.0, least),
            known=float("inf") if known is None else known.seconds,
            is_clear=is_clear,
        )
        self.taking_part_n = members_n
        self._look = None
        self._idle_n[:], self._tries_n[:] = 0, 0
        self.tried_n = np.full(members_n.size, False)
        return SetChange(~members_n, model, expected, before, reason)

    def _remember(self, model: StepModel, step: int) -> float:
        """Records how long the current set's steps take, and returns it."""
        assert self._stay is not None
        known = self._times.of(self._stay.members)
        seconds = self._stay.latest_seconds if self._stay.has_slowed else self._stay.seconds
        beyond = max(0.0, seconds - model.at_most(self.taking_part_n))
        links = tuple(model.row_n[self.taking_part_n].tolist())
        leaves = 0 if known is None else known.leaves
        is_even = model.is_even(self.taking_part_n, SAME_INPUT)
        time = SetTime(seconds, beyond, links, model.samples, step, leaves, self._stay.is_settled, is_even)
        self._times.put(self._stay.members, time)
        return seconds

    def _candidates(self, model: StepModel) -> list[Bool]:
        """Sets that might be faster than the current one.

        The best worker alone, the 2, 4, 8 … fastest, all, one more or less than now, the model's best, and those that
        were measured.
        """
        rank_n = self._rank_n(model)
        now = int(self.taking_part_n.sum())
        sizes = {*(2**power for power in range(1, rank_n.size.bit_length())), now - 1, now + 1, rank_n.size}
        sets = [(rank_n < size) | ~self._may_park_n for size in sorted(sizes) if 1 < size <= rank_n.size]
        sets.append(model.best(self._may_park_n, self.taking_part_n))
        if (alone_n := model.best_sole(self._may_park_n, self.taking_part_n)) is not None:
            sets.append(alone_n)
        sets.extend(self._set_of(members) for members in self._times.within(self._names))
        sets.extend(self._others(model))
        different = {each.tobytes(): each for each in sets if (each != self.taking_part_n).any()}
        return list(different.values())

    def _rank_n(self, model: StepModel) -> I64:
        """Each worker's place in the order of speed."""
        order = model.by_speed(self._may_park_n)
        rank_n = np.empty_like(order)
        rank_n[order] = np.arange(order.size)
        return rank_n

    def _others(self, model: StepModel) -> list[Bool]:
        """If a set has become slower: the fastest of the other workers, alone and as many."""
        if not self._is_far_slower or not self._may_park_n[self._slowed_n].all():
            return []
        order = model.by_speed(self._may_park_n)
        others = order[~self._slowed_n[order]]
        alone_n = model.best_sole(self._may_park_n, self.taking_part_n, ~self._slowed_n)
        as_many_n = np.isin(np.arange(order.size), others[: int(self._slowed_n.sum())])
        return [each for each in (alone_n, as_many_n) if each is not None and each.any()]

    def _expect(self, model: StepModel, step: int, members_n: Bool) -> float:
        """Seconds of a step of these workers, the hand-overs of the change included; infinite: not to be tried now."""
        assert self._stay is not None
        by_model = model.time_after(self.taking_part_n, members_n)
        if by_model == float("inf"):
            return by_model
        at_best = by_model - model.time_of(members_n) + model.at_best(members_n) + self._beyond_inside(members_n)
        may_be_fast = self._is_far_slower and not (members_n & self._slowed_n).any()
        if may_be_fast:  # if it is only those workers that have become slower, others are as fast as they were
            as_before = self._fast * model.time_of(members_n) / max(model.time_of(self._slowed_n), SHORTEST)
            at_best = min(at_best, by_model - model.time_of(members_n) + as_before)
        known = self._known(model, members_n)
        if known is None:
            likely = by_model + _beyond_at(int(members_n.sum()), self._known_sets(model))
            is_one_of_few = self._is_tried_at_first(members_n)
            if self._may_lose_at_first(step) > 0.0:
                return at_best if is_one_of_few else likely
            if is_one_of_few and step <= self._first_until and self._is_promising(members_n, at_best):
                return at_best
            is_clear = SLOWED * likely < self._stay.seconds and self._wins_back(likely)
            can_afford = self._can_afford(likely) or (self._may_differ(members_n, step) and is_clear)
            return at_best if can_afford else float("inf")
        if not known.is_settled and (self._may_lose_at_first(step) > 0.0 or self._was_cold(members_n, by_model)):
            return min(known.seconds, at_best)
        if known.is_due(step) and self._can_afford(known.seconds):
            return min(known.seconds, at_best)
        if self._may_return(members_n, known) and self._may_lose_at_first(step) > 0.0:
            return self._fast
        if self._is_slow:
            return min(known.seconds, at_best) if may_be_fast and known.step < self._slow_since else known.seconds
        # Of a set that has won, an old time of another one says little: the whole machine may have been faster then.
        if self._stay.has_won:
            return float("inf")
        # A trial has to be clearly faster than what was there before: eight steps say no more than that.
        in_favour = 1 - MIN_IMPROVEMENT if self._stay.is_trial and step > self._first_until else 1.0
        return in_favour * known.seconds if known.is_fresh(step) else float("inf")

    def _may_return(self, members_n: Bool, known: SetTime) -> bool:
        """Whether these are the workers that have become a little slower, perhaps by chance, and were left for others
        that are slower than they were: they are tried once more.
        """
        assert self._stay is not None
        was_left = self._fast < float("inf") and bool((members_n == self._slowed_n).all())
        is_mild = known.seconds < FAR_LONGER * self._fast
        is_first_time = self._leaves == 1
        return was_left and is_mild and is_first_time and self._stay.has_won

    def _is_promising(self, members_n: Bool, seconds: float) -> bool:
        """Whether a set should be far faster than any that is known, and larger ones are at least not far slower."""
        size = int(members_n.sum())
        larger = [time.seconds for members, time in self._times.within(self._names).items() if len(members) > size]
        return PROMISING * seconds < self._fastest and min(larger, default=float("inf")) < SAME_INPUT * self._fastest

    def _is_tried_at_first(self, members_n: Bool) -> bool:
        """Whether a set is one of the few that a run begins with: sizes that double, and all."""
        size = int(members_n.sum())
        return size & (size - 1) == 0 or size == members_n.size

    def _known(self, model: StepModel, members_n: Bool) -> SetTime | None:
        """What was measured of these workers, or of others that are like them, if it still holds."""
        known = self._times.of(self._names_of(members_n))
        if known is not None and known.holds(model.samples, model.row_n[members_n].tolist()):
            return known
        return self._known_alike(model, members_n)

    def _known_alike(self, model: StepModel, members_n: Bool) -> SetTime | None:
        """The latest of those with as many workers, links that are about as fast, and the same time by the model.

        A set that has become slower is none of them: others may be as fast as it was.
        """
        expected = model.time_of(members_n)
        row_n = np.sort(model.row_n[members_n])

        def is_like(other_n: Bool) -> bool:
            if self._is_slow and (other_n == self._slowed_n).all():
                return False
            has_such_links = bool((np.abs(np.sort(model.row_n[other_n]) - row_n) <= ALIKE * row_n).all())
            return has_such_links and abs(model.time_of(other_n) - expected) <= ALIKE * expected

        known = self._known_sets(model)
        alike = [time for other_n, time in known if len(time.row_seconds) == row_n.size and is_like(other_n)]
        return max(alike, key=lambda time: time.step, default=None)

    def _known_sets(self, model: StepModel) -> list[tuple[Bool, SetTime]]:
        """Sets that may be formed now whose measured time still holds, the latest last."""
        known = [(self._set_of(members), time) for members, time in self._times.within(self._names).items()]
        holding = [
            (members_n, time)
            for members_n, time in known
            if len(time.row_seconds) == members_n.sum() and time.holds(model.samples, model.row_n[members_n].tolist())
        ]
        return sorted(holding, key=lambda each: each[1].step)

    def _beyond_inside(self, members_n: Bool) -> float:
        """What a step takes beyond the model's expectation: at least what it took the largest known set within it."""
        wanted = self._names_of(members_n)
        inside = [time for members, time in self._times.within(self._names).items() if members < wanted]
        return max(inside, key=lambda time: len(time.row_seconds)).beyond if inside else 0.0

    @property
    def _fastest(self) -> float:
        """Seconds of a step of the fastest known set; infinite if none is known."""
        return min((time.seconds for time in self._times.within(self._names).values()), default=float("inf"))

    def _could_pay(self, model: StepModel, time: float) -> bool:
        return self._could_pay_now(model, time) if self._look is None else self._look.could_pay

    def _could_pay_now(self, model: StepModel, time: float) -> bool:
        """Whether a larger set would be clearly faster if its workers were all as fast as the fastest.

        If such a set was measured, the clock knows: workers that have nothing to catch up with are not tried.
        """
        now = int(self.taking_part_n.sum())
        known_sets = self._known_sets(model)
        even_at = {len(known.row_seconds): known.seconds for _, known in known_sets if known.is_even} | {now: time}
        sizes = sorted(even_at)
        rank_n = self._rank_n(model)
        evened = model.evened()

        def expected(size: int) -> float:
            if size <= sizes[-1]:
                return float(np.interp(size, sizes, [even_at[each] for each in sizes]))
            return evened.time_of(rank_n < size) + _beyond_at(size, known_sets)

        return any(expected(size) < (1 - MIN_IMPROVEMENT) * time for size in range(now + 1, rank_n.size + 1))

    def _slower_by_tries(self, time: float) -> float:
        """By the clock, once there were some."""
        return UNKNOWN_TRY * time if self._try_seconds is None else self._try_seconds

    def _may_lose_at_first(self, step: int) -> float:
        """Seconds that trials may cost from now on because the run has begun, or its set has become slower."""
        if step > self._first_until or self._fastest == float("inf"):
            return 0.0
        slower = self._stay.seconds - self._fast if self._stay is not None and self._is_slow else 0.0
        return max(0.0, max(FIRST_STEPS * self._fastest, WON_BACK * slower) - self._first_lost)

    def _may_lose(self, step: int) -> float:
        """Seconds that a trial may cost from now on."""
        return self._may_lose_at_first(step) + max(0.0, EXPLORED * self._elapsed - self._lost)

    def _can_afford(self, seconds: float) -> bool:
        """Whether there is time to try a set whose steps take so long, beside the trials at the beginning.

        It has to be changed to and, if it is not faster, back again.
        """
        assert self._stay is not None
        now = self._stay.seconds
        change = now if self._change_seconds is None else self._change_seconds
        cost = 2 * change + TRIAL_STEPS * max(0.0, seconds - now)
        return cost <= EXPLORED * self._elapsed - self._lost

    def _may_differ(self, members_n: Bool, step: int) -> bool:
        """Whether a set was measured with other links or batches a while ago, or is one worker, about whom the model is
        right.
        """
        known = self._times.of(self._names_of(members_n))
        return int(members_n.sum()) == 1 if known is None else known.is_due(step)

    def _wins_back(self, seconds: float) -> bool:
        """Whether a set whose steps take so long soon makes up for the change to it."""
        assert self._stay is not None
        now = self._stay.seconds
        change = now if self._change_seconds is None else self._change_seconds
        return 2 * change < WON_BACK * (now - seconds)

    def _was_cold(self, members_n: Bool, seconds: float) -> bool:
        """Whether one worker alone, whose steps now take so long by the model, was measured only as the first set of a
        generation, with empty caches. It is tried once more, whatever other trials have cost.
        """
        known = self._times.of(self._names_of(members_n))
        is_unsettled = known is not None and not known.is_settled
        return is_unsettled and int(members_n.sum()) == 1 and self._wins_back(seconds)

    def _set_of(self, members: frozenset[str]) -> Bool:
        """These workers, and those that must not be parked."""
        return np.array([name in members for name in self._names]) | ~self._may_park_n

    def _names_of(self, members_n: Bool) -> frozenset[str]:
        return frozenset(name for name, is_member in zip(self._names, members_n, strict=True) if is_member)


def _beyond_at(size: int, known_sets: list[tuple[Bool, SetTime]]) -> float:
    """What a step of so many workers is likely to take beyond the model's expectation: between what it took the next
    smaller and the next larger of the known sets.
    """
    beyond_at = {0: 0.0} | {len(time.row_seconds): time.beyond for _, time in known_sets}
    sizes = sorted(beyond_at)
    return float(np.interp(size, sizes, [beyond_at[each] for each in sizes]))

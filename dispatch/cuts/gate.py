"""Which versions of the model may be served: a pure function of what is known of a cut and of those before it.

A version is held back for values that are not finite; and, once enough samples have been scored, for a recent logloss
that is worse than its moving average, for predictions that are too high or too low in sum, and for a share of changed
rows that jumps. A cut that is held back is part of the chain of files like any other, and the next good one goes out.

Averages follow the samples between two cuts. Cuts that are held back count little, so that a bad hour does not become
the norm, and yet a lasting change of the stream is accepted in time.
"""

from math import exp, sqrt
from typing import NamedTuple

import msgspec

from dispatch.job import GateRule
from dispatch.progress.prequential import Quality
from ps.cuts.manifest import CutFigures, Verdict

HORIZON = 8
"""windows of ``GateRule.samples`` that an average looks back on"""
HELD_SHARE = 0.1
"""weight of a cut that is held back, of that of a good one"""
CERTAINTY = 3.0
"""standard deviations of the number of clicks that chance may explain"""


class GateState(msgspec.Struct, frozen=True):
    """Moving averages; saved with every cut, so that a restart does not forget what is usual."""

    logloss: float | None = None
    """None: too few samples so far"""
    changed_share: float | None = None
    samples: int = 0
    """trained up to the last cut that moved the averages"""


class CutReadings(NamedTuple):
    """What is known of a cut."""

    recent: Quality
    """of the latest samples, ``GateRule.samples`` at most"""
    trained: int
    """samples, since the run began"""
    rows: int
    changed: int | None
    """rows, since the cut before; None: not known, because there is none to compare with"""
    non_finite: int
    newest_event_seconds: float = 0.0


class Judgement(NamedTuple):
    """What follows for one cut, and what the next one is compared with."""

    verdict: Verdict
    figures: CutFigures
    state: GateState


def judge(rule: GateRule, state: GateState, found: CutReadings) -> Judgement:
    """Whether a cut may be served."""
    share = None if found.changed is None else found.changed / max(1, found.rows)
    reasons = tuple(_non_finite(found))
    if found.recent.samples >= rule.samples:
        told = (_logloss(rule, state, found), _calibration(rule, found), _changed(rule, state, share))
        reasons += tuple(reason for reason in told if reason is not None)
    figures = CutFigures(
        samples=found.recent.samples,
        logloss=found.recent.logloss or 0.0,
        average_logloss=state.logloss or 0.0,
        calibration=1.0 if found.recent.calibration is None else found.recent.calibration,
        changed_share=share or 0.0,
        average_changed_share=state.changed_share or 0.0,
        non_finite=found.non_finite,
        newest_event_seconds=found.newest_event_seconds,
    )
    return Judgement(Verdict(reasons), figures, _follow(rule, state, found, share, is_good=not reasons))


def _non_finite(found: CutReadings) -> list[str]:
    reasons = []
    if found.non_finite:
        reasons.append(f"{found.non_finite} values of rows or dense weights are not finite; expected none")
    if found.recent.not_finite:
        reasons.append(f"{found.recent.not_finite} recent predictions are not finite; expected none")
    return reasons


def _logloss(rule: GateRule, state: GateState, found: CutReadings) -> str | None:
    if state.logloss is None or found.recent.logloss is None:
        return None
    most = state.logloss * (1 + rule.logloss)
    if found.recent.logloss <= most:
        return None
    return (
        f"logloss of the latest {found.recent.samples} samples is {found.recent.logloss:.4f}, and its average was "
        f"{state.logloss:.4f}; expected {most:.4f} at most"
    )


def _calibration(rule: GateRule, found: CutReadings) -> str | None:
    calibration, clicks = found.recent.calibration, found.recent.clicks
    if calibration is None:
        return None
    most = rule.calibration + CERTAINTY / sqrt(clicks)
    if abs(calibration - 1) <= most:
        return None
    return (
        f"{calibration:.3f} clicks are predicted for each of the latest {clicks} clicks; expected {1 - most:.3f} to "
        f"{1 + most:.3f}"
    )


def _changed(rule: GateRule, state: GateState, share: float | None) -> str | None:
    if share is None or state.changed_share is None or share <= state.changed_share + rule.changed_share:
        return None
    return (
        f"{share:.1%} of all rows have changed since the version before, and {state.changed_share:.1%} was the "
        f"average; expected {state.changed_share + rule.changed_share:.1%} at most"
    )


def _follow(rule: GateRule, state: GateState, found: CutReadings, share: float | None, is_good: bool) -> GateState:
    """The averages with this cut in them."""
    if found.recent.samples < rule.samples or found.recent.logloss is None:
        return state
    new = max(0, found.trained - state.samples)
    weight = (1 - exp(-new / (HORIZON * rule.samples))) * (1.0 if is_good else HELD_SHARE)
    return GateState(
        _moved(state.logloss, found.recent.logloss, weight),
        state.changed_share if share is None else _moved(state.changed_share, share, weight),
        found.trained,
    )


def _moved(average: float | None, value: float, weight: float) -> float:
    return value if average is None else average + weight * (value - average)

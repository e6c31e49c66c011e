"""Which snapshots may be served: a pure function of what is known of a checkpoint and of those before it.

A snapshot is held back for values that are not finite, for a sudden rise in the share of changed rows, for a missing
field, for labels that cannot be right, and for predictions that are worse than before.

Labels and predictions are judged by a *reference*: the served snapshot, which has scored the newest samples. It was
good once, and while snapshots are held back it stays the same, so wrong labels cannot drag it along. The labels are
suspect if the reference orders them no better than chance, or expects clicks where there are none. A real change of the
click rate does not change the order. If the labels are right, the model must do as well on them as the reference.

If no server has answered, the verdict is based on averages over good snapshots, and on what the model predicted before
it learnt from each sample. These distinguish the same cases, with one exception: labels that stay inverted until the
model predicts them well. These are held back until the click rate is back, or for ``PATIENCE`` windows.

A snapshot after one that was held back must be right without the allowance for chance. A checkpoint that is held back
is part of the chain of files like any other, and the next good one is published. If a held snapshot is served
nevertheless, a person released it: from then on the new state counts as usual.
"""

from math import exp, sqrt
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dispatch.checkpoints.evidence import (
    Auc,
    Comparison,
    EqualLabels,
    ScoredSamples,
    auc_deviation,
    compare,
    fewest_possible,
    is_impossible,
    newest_run,
    no_scores,
    telling_samples,
)
from dispatch.job import GateRule
from dispatch.progress.quality import Quality
from ps.checkpoints.manifest import CheckpointFigures, Verdict
from ps.protocol import CHECKPOINT_ON_DISK

HORIZON = 8
"""Windows of ``GateRule.samples`` that an average covers."""
HELD_SHARE = 0.1
"""Weight of a checkpoint that is held back in the average of changed rows, relative to a good one."""
MOST_KEPT = 16_384
"""Most scored samples that are kept if clicks are rare; otherwise ``GateRule.samples``."""
CURRENT_SNAPSHOTS = 30
"""Number of latest good snapshots that the reference must be among: an older one is pinned, or its server is stuck."""
PATIENCE = 64
"""Windows of ``GateRule.samples`` after which labels that no reference can judge count as a change of the stream."""
PRESENT_SHARE = 0.5
"""Share of the samples that usually have a field and must still have it."""


class Band(NamedTuple):
    """How far figures may be off."""

    share: float
    """Share of the tolerances in GateRule."""
    deviations: float
    """Standard deviations that chance may explain in addition."""


USUAL_BAND = Band(1.0, 5.0)
BAND_BEHIND_HELD = Band(0.5, 1.0)


class Usual(msgspec.Struct, frozen=True):
    """Averages over good snapshots."""

    click_rate: float
    auc: float | None = None
    """AUC of the model in training."""
    normalized_entropy: float | None = None


class Held(msgspec.Struct, frozen=True):
    """The snapshots held back since the last good one."""

    checkpoint: int = msgspec.field(name=CHECKPOINT_ON_DISK)
    """The first checkpoint of them."""
    samples: int
    """Samples trained up to it."""
    are_labels_suspect: bool
    """Whether the labels of the last of them are suspect."""


class PresentCounts(msgspec.Struct, frozen=True):
    """Which fields the samples of a run have had so far; S fields."""

    samples: int
    present_S: NDArray[np.int64]


class GateState(msgspec.Struct, frozen=True):
    """What the next checkpoint is compared with; saved with each, so that a restart does not forget what is usual."""

    usual: Usual | None = None
    """The averages; None: too few samples so far."""
    changed_share: float | None = None
    samples: int = 0
    """Samples trained up to the last checkpoint."""
    held: Held | None = None
    """The snapshots held back; None: the last checkpoint was good."""
    good_steps: tuple[int, ...] = ()
    """Steps of the latest good checkpoints, ascending."""
    scores: ScoredSamples = msgspec.field(default_factory=no_scores)
    """The newest scored samples."""
    since_held: int = 0
    """How many of these, from the newest on, came after the last snapshot that was held back."""
    since_suspect: int = 0
    """How many of these, from the newest on, have labels that are known to be right."""
    fields: PresentCounts | None = None
    """Counts up to the last checkpoint."""
    present_shares_S: NDArray[np.float64] | None = None
    """Share of samples that have each field: averages over good snapshots."""


class ReferenceScores(NamedTuple):
    """How the served snapshot scores the newest samples."""

    scores: ScoredSamples
    checkpoint: int
    step: int


class CheckpointReadings(NamedTuple):
    """What is known of a checkpoint."""

    recent: Quality
    """Quality on the latest samples, at most ``GateRule.samples``."""
    trained: int
    """Samples trained since the run began."""
    rows: int
    changed: int | None
    """Rows changed since the checkpoint before; None: not known, because there is none to compare with."""
    non_finite: int
    live_share: float = 1.0
    """Share of the chunks of rows that are not pruned. Nothing is held back for it: a first round prunes most of them
    at once, and what that does to predictions is judged by predictions.
    """
    newest_event_seconds: float = 0.0
    number: int = 0
    step: int = 0
    reference: ReferenceScores | None = None
    """Scores by the reference; None: no server has answered."""
    fields: PresentCounts | None = None
    field_names: tuple[str, ...] = ()


class Judgement(NamedTuple):
    """The verdict on one checkpoint, and what the next one is compared with."""

    verdict: Verdict
    figures: CheckpointFigures
    state: GateState


class Opinion(NamedTuple):
    """Objections to labels and model."""

    labels: str | None
    """Why the labels cannot be right."""
    model: tuple[str, ...] = ()
    """Why its predictions are not good enough; empty if the labels are suspect, which say nothing about it."""
    comparison: Comparison | None = None
    """Comparison with the reference; None: judged by averages."""

    @property
    def reasons(self) -> tuple[str, ...]:
        return self.model if self.labels is None else (self.labels,)


def judge(rule: GateRule, state: GateState, found: CheckpointReadings) -> Judgement:
    """Whether a checkpoint may be served."""
    if _is_let_out(state, found):
        state = replace(state, usual=None, held=None, present_shares_S=None)
    if found.reference is not None:
        state = _with_scores(rule, state, found.reference.scores)
    share = None if found.changed is None else found.changed / max(1, found.rows)
    opinion = Opinion(None)
    reasons = tuple(_non_finite(found))
    if found.recent.samples >= rule.samples:
        opinion = _judge_by_reference(rule, state, found) or _judge_by_past(rule, state, found)
        reasons += (*_gone_fields(state, found), *_changed(rule, state, share), *opinion.reasons)
    figures = _figures(state, found, share, opinion)
    return Judgement(Verdict(reasons), figures, _state_after(rule, state, found, share, opinion, is_good=not reasons))


def _is_let_out(state: GateState, found: CheckpointReadings) -> bool:
    """Whether a person has released a snapshot that was held back."""
    return (
        found.reference is not None and state.held is not None and found.reference.checkpoint >= state.held.checkpoint
    )


def _band(state: GateState) -> Band:
    return USUAL_BAND if state.held is None else BAND_BEHIND_HELD


def _non_finite(found: CheckpointReadings) -> list[str]:
    reasons = []
    if found.non_finite:
        reasons.append(f"{found.non_finite} values of rows or dense weights are not finite; expected none")
    if found.recent.not_finite:
        reasons.append(f"{found.recent.not_finite} recent predictions are not finite; expected none")
    return reasons


def _changed(rule: GateRule, state: GateState, share: float | None) -> list[str]:
    if share is None or state.changed_share is None or share <= state.changed_share + rule.changed_share:
        return []
    return [
        f"{share:.1%} of all rows have changed since the snapshot before, and {state.changed_share:.1%} was the "
        f"average; expected {state.changed_share + rule.changed_share:.1%} at most"
    ]


# ── fields ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def _new_fields(state: GateState, found: CheckpointReadings) -> PresentCounts | None:
    """Counts of the samples since the checkpoint before; None: not known."""
    before = state.fields
    now = found.fields
    if before is None or now is None or before.samples >= now.samples or len(before.present_S) != len(now.present_S):
        return None
    return PresentCounts(now.samples - before.samples, now.present_S - before.present_S)


def _gone_fields(state: GateState, found: CheckpointReadings) -> list[str]:
    new = _new_fields(state, found)
    usual_S = state.present_shares_S
    if new is None or usual_S is None or len(usual_S) != len(new.present_S):
        return []
    reasons = []
    for name, present, usual in zip(found.field_names, new.present_S.tolist(), usual_S.tolist(), strict=True):
        if is_impossible(present, PRESENT_SHARE * usual * new.samples):
            reasons.append(
                f"field {name} is in {present / new.samples:.1%} of the {new.samples} samples since the snapshot "
                f"before, and was in {usual:.1%}; expected {PRESENT_SHARE * usual:.1%} at least"
            )
    return reasons


# ── labels and model, by the served snapshot ──────────────────────────────────────────────────────────────────────────
def _judge_by_reference(rule: GateRule, state: GateState, found: CheckpointReadings) -> Opinion | None:
    """The opinion by the reference; None if there is none, it is not current, or it has scored too few samples."""
    reference = found.reference
    telling = telling_samples(state.scores)
    if reference is None or not len(reference.scores) or _is_stale(state, reference):
        return None
    usual_rate = None if state.usual is None else state.usual.click_rate
    if (labels := _equal_labels(newest_run(state.scores, usual_rate))) is not None:
        return Opinion(labels, comparison=compare(reference.scores))
    if telling is None and len(state.scores) < MOST_KEPT:
        return None
    newest = max(telling or MOST_KEPT, len(reference.scores))
    compared = compare(state.scores.newest(newest))
    labels = _impossible_rate(compared.samples, compared.clicks, compared.expected, "the served snapshot")
    labels = labels or _lost_order(state, compared)
    if labels is not None:
        return Opinion(labels, comparison=compared)
    since_held = min(rule.samples, state.since_held + len(reference.scores))
    compared = compare(state.scores.newest(max(newest, since_held)))
    since_suspect = _right_samples(state, len(reference.scores))
    if state.held is not None and since_suspect < newest:
        return Opinion(
            None, (f"{since_suspect} samples have come since labels are right; expected {newest}",), compared
        )
    model = (_worse(rule, state, compared), _miscalibrated(rule, state, compared))
    return Opinion(None, tuple(reason for reason in model if reason is not None), compared)


def _right_samples(state: GateState, new: int) -> int:
    """Samples scored since labels were last suspect; a snapshot after suspect ones may have samples of both kinds."""
    return 0 if state.held is not None and state.held.are_labels_suspect else state.since_suspect + new


def _equal_labels(run: EqualLabels) -> str | None:
    if not run.is_impossible:
        return None
    found, other = ("clicks", "none") if run.are_clicks else ("no clicks", "clicks")
    return (
        f"all of the latest {run.samples} samples are {found}, and by the served snapshot or the usual rate "
        f"{run.expected:.0f} were to be {other}; expected one of these at least"
    )


def _is_stale(state: GateState, reference: ReferenceScores) -> bool:
    return len(state.good_steps) == CURRENT_SNAPSHOTS and reference.step < state.good_steps[0]


def _impossible_rate(samples: int, clicks: int, expected: float, by: str) -> str | None:
    seen = (("clicks", clicks, expected), ("no clicks", samples - clicks, samples - expected))
    for name, count, wanted in seen:
        least = fewest_possible(wanted)
        if is_impossible(count, least):
            return (
                f"{count} of the latest {samples} samples are {name}, and {by} expected {wanted:.0f}; expected "
                f"{least:.0f} at least, however much the click rate has changed"
            )
    return None


def _least_auc(state: GateState, clicks: int, others: int) -> float:
    """The least AUC: half way between the usual one and chance, allowing for chance."""
    usual = 0.5 if state.usual is None or state.usual.auc is None else max(0.5, state.usual.auc)
    chance = _band(state).deviations * auc_deviation(usual, clicks, others)
    return min((usual + 0.5) / 2, usual - chance)


def _lost_order(state: GateState, compared: Comparison) -> str | None:
    """A model that follows a change orders it well; the reference gets inverted labels wrong."""
    reference = compared.reference_auc
    model = compared.model_auc
    if reference is None or model is None:
        return None
    least = _least_auc(state, compared.clicks, compared.samples - compared.clicks)
    is_inverted = reference.value < 0.5 - _band(state).deviations * reference.deviation
    if not is_inverted and max(reference.value, model.value) >= least:
        return None
    return (
        f"AUC of the latest {compared.samples} samples is {reference.value:.3f} by the served snapshot, and "
        f"{model.value:.3f} by the model; expected {least:.3f} at least: labels are random or inverted"
    )


def _worse(rule: GateRule, state: GateState, compared: Comparison) -> str | None:
    band = _band(state)
    most = band.share * rule.logloss * compared.reference_loss + band.deviations * compared.excess_deviation
    if compared.excess <= most:
        return None
    return (
        f"logloss of the latest {compared.samples} samples is {compared.reference_loss + compared.excess:.4f}, and "
        f"{compared.reference_loss:.4f} by the served snapshot; expected {compared.reference_loss + most:.4f} "
        "at most"
    )


def _miscalibrated(rule: GateRule, state: GateState, compared: Comparison) -> str | None:
    return _wrong_sum(
        rule=rule,
        state=state,
        samples=compared.samples,
        clicks=compared.clicks,
        predicted=compared.predicted,
        by_reference=f", {compared.expected:.0f} by the served snapshot",
    )


def _wrong_sum(
    rule: GateRule, state: GateState, samples: int, clicks: int, predicted: float, by_reference: str = ""
) -> str | None:
    """Also works without clicks."""
    band = _band(state)
    variance = max(count * (1 - count / samples) for count in (predicted, float(clicks)))
    most = band.share * rule.calibration * clicks + band.deviations * sqrt(max(0.0, variance))
    if abs(predicted - clicks) <= most:
        return None
    return (
        f"{predicted:.0f} clicks are predicted for the latest {samples} samples{by_reference}, and there were "
        f"{clicks}; expected {max(0.0, clicks - most):.0f} to {clicks + most:.0f}"
    )


# ── labels and model, by averages ─────────────────────────────────────────────────────────────────────────────────────
def _judge_by_past(rule: GateRule, state: GateState, found: CheckpointReadings) -> Opinion:
    """The opinion by averages, if there is no reference."""
    recent = found.recent
    usual = state.usual
    if usual is not None and (labels := _wrong_labels(rule, state, usual, found)) is not None:
        return Opinion(f"{labels} (no reference)")
    model = (
        None if usual is None else _worse_than_usual(rule, state, usual, recent),
        _wrong_sum(rule, state, *_counted(recent)),
    )
    return Opinion(None, tuple(f"{reason} (no reference)" for reason in model if reason is not None))


def _wrong_labels(rule: GateRule, state: GateState, usual: Usual, found: CheckpointReadings) -> str | None:
    recent = found.recent
    samples, clicks, _ = _counted(recent)
    expected = usual.click_rate * samples
    if (reason := _impossible_rate(samples, clicks, expected, "the usual rate")) is not None:
        return reason
    least = 0.0 if recent.auc is None else _least_auc(state, clicks, samples - clicks)
    if recent.auc is not None and recent.auc < least:
        return f"AUC of the latest {recent.samples} samples is {recent.auc:.3f}; expected {least:.3f} at least"
    held = state.held
    is_awaited = held is not None and found.trained - held.samples < PATIENCE * rule.samples
    if held is None or not held.are_labels_suspect or not is_awaited:
        return None
    if abs(clicks - expected) <= rule.calibration * expected:
        return None
    return (
        f"labels were suspect, and {clicks} of the latest {samples} samples are clicks; expected about "
        f"{expected:.0f}, as before"
    )


def _counted(recent: Quality) -> tuple[int, int, float]:
    """Samples, clicks and predicted clicks; of samples with weights as many as would tell as much without."""
    weights = recent.weights
    if weights is None or not weights.total:
        return recent.samples, recent.clicks, recent.predicted_clicks
    samples = max(1, round(weights.effective_samples))
    scale = samples / weights.total
    return samples, round(scale * weights.clicks), scale * recent.predicted_clicks


def _worse_than_usual(rule: GateRule, state: GateState, usual: Usual, recent: Quality) -> str | None:
    if usual.normalized_entropy is None or recent.normalized_entropy is None:
        return None
    most = usual.normalized_entropy * (1 + _band(state).share * rule.logloss)
    if recent.normalized_entropy <= most:
        return None
    return (
        f"logloss of the latest {recent.samples} samples over the entropy of their click rate is "
        f"{recent.normalized_entropy:.3f}, and {usual.normalized_entropy:.3f} was usual; expected {most:.3f} at most"
    )


# ── what the next one is compared with ────────────────────────────────────────────────────────────────────────────────
def _with_scores(rule: GateRule, state: GateState, new: ScoredSamples) -> GateState:
    scores = state.scores.followed_by(new).newest(MOST_KEPT)
    kept = max(rule.samples, len(new), telling_samples(scores) or MOST_KEPT)
    return replace(state, scores=scores.newest(kept))


def _state_after(
    rule: GateRule, state: GateState, found: CheckpointReadings, share: float | None, opinion: Opinion, is_good: bool
) -> GateState:
    """The state including this checkpoint."""
    fields = found.fields or state.fields
    if found.recent.samples < rule.samples:
        return replace(state, fields=fields)
    new = max(0, found.trained - state.samples)
    weight = 1 - exp(-new / (HORIZON * rule.samples))
    scored = 0 if found.reference is None else len(found.reference.scores)
    shares_S = _move_shares(state, found, weight)
    state = replace(
        state,
        changed_share=_moved(state.changed_share, share, weight if is_good else HELD_SHARE * weight),
        samples=found.trained,
        since_held=min(rule.samples, state.since_held + scored) if is_good else 0,
        since_suspect=0 if opinion.labels is not None else min(MOST_KEPT, _right_samples(state, scored)),
        fields=fields,
    )
    if not is_good:
        began = state.held or Held(found.number, found.trained, False)
        return replace(state, held=replace(began, are_labels_suspect=opinion.labels is not None))
    return replace(
        state,
        usual=_move_usual(state.usual, found.recent, weight),
        held=None,
        good_steps=(*state.good_steps, found.step)[-CURRENT_SNAPSHOTS:],
        present_shares_S=shares_S,
    )


def _move_usual(usual: Usual | None, recent: Quality, weight: float) -> Usual:
    weights = recent.weights
    is_weighed = weights is not None and weights.total > 0
    rate = weights.clicks / weights.total if weights is not None and is_weighed else recent.clicks / recent.samples
    if usual is None:
        return Usual(rate, recent.auc, recent.normalized_entropy)
    return Usual(
        usual.click_rate + weight * (rate - usual.click_rate),
        _moved(usual.auc, recent.auc, weight),
        _moved(usual.normalized_entropy, recent.normalized_entropy, weight),
    )


def _move_shares(state: GateState, found: CheckpointReadings, weight: float) -> NDArray[np.float64] | None:
    usual_S = state.present_shares_S
    new = _new_fields(state, found)
    if new is None:
        return usual_S
    shares_S = new.present_S / new.samples
    is_known = usual_S is not None and len(usual_S) == len(shares_S)
    return usual_S + weight * (shares_S - usual_S) if usual_S is not None and is_known else shares_S


def _moved(average: float | None, value: float | None, weight: float) -> float | None:
    if average is None or value is None:
        return value if average is None else average
    return average + weight * (value - average)


def _figures(state: GateState, found: CheckpointReadings, share: float | None, opinion: Opinion) -> CheckpointFigures:
    compared = opinion.comparison
    recent = found.recent
    figures = CheckpointFigures(
        samples=recent.samples,
        logloss=recent.logloss or 0.0,
        calibration=1.0 if recent.calibration is None else recent.calibration,
        changed_share=share or 0.0,
        average_changed_share=state.changed_share or 0.0,
        live_share=found.live_share,
        non_finite=found.non_finite,
        newest_event_seconds=found.newest_event_seconds,
        auc=recent.auc or 0.0,
    )
    if compared is None or found.reference is None:
        return figures
    return replace(
        figures,
        reference_step=found.reference.step,
        compared_samples=compared.samples,
        reference_logloss=compared.reference_loss,
        excess_logloss=compared.excess,
        auc=_value(compared.model_auc),
        reference_auc=_value(compared.reference_auc),
        clicks=compared.clicks,
        predicted_clicks=compared.predicted,
        expected_clicks=compared.expected,
    )


def _value(auc: Auc | None) -> float:
    return 0.0 if auc is None else auc.value

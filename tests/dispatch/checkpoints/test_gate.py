"""Verdicts over simulated streams: snapshots of 1,000 samples each, scored by the model and by what is served."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dispatch.checkpoints.evidence import scored
from dispatch.checkpoints.gate import (
    CURRENT_SNAPSHOTS,
    CheckpointReadings,
    GateState,
    Held,
    Judgement,
    PresentCounts,
    ReferenceScores,
    Usual,
    judge,
)
from dispatch.checkpoints.state import DispatcherState, load_state, save_state
from dispatch.job import GateRule
from dispatch.progress.prequential import Prequential, recent_quality
from dispatch.progress.quality import Quality
from tests.dispatch.checkpoints.checkpoints import decided, trained

RULE = GateRule()
SAMPLES = 1000
"""of a snapshot"""
LEARNT = 0.5
"""of what is left to learn of a change, in one snapshot"""
USUAL_ODDS = -1.0
Labels = Callable[[NDArray[np.float64], np.random.Generator], NDArray[np.bool_]]


def clicks(odds_B: NDArray[np.float64], draw: np.random.Generator) -> NDArray[np.bool_]:
    return draw.random(len(odds_B)) < 1 / (1 + np.exp(-odds_B))


def probabilities(odds_B: NDArray[np.float64]) -> NDArray[np.float32]:
    return (1 / (1 + np.exp(-odds_B))).astype(np.float32)


FAULTS: dict[str, Labels] = {
    "zeros": lambda odds_B, draw: np.zeros(len(odds_B), np.bool_),
    "ones": lambda odds_B, draw: np.ones(len(odds_B), np.bool_),
    "inverted": lambda odds_B, draw: ~clicks(odds_B, draw),
    "random": lambda odds_B, draw: draw.permutation(clicks(odds_B, draw)),
}
WHAT_IS_LEARNT: dict[str, tuple[float, float]] = {
    "zeros": (-9.0, 0.0),
    "ones": (9.0, 0.0),
    "inverted": (0.0, -1.0),
    "random": (-1.0, 0.0),
}
"""shift and slope of the log-odds that a model comes to predict"""


@dataclass
class Stream:
    """A stream, a model that follows what it is taught, and the served snapshot."""

    rule: GateRule = RULE
    has_server: bool = True
    shift: float = 0.0
    """of the real log-odds"""
    state: GateState = field(default_factory=GateState)

    def __post_init__(self) -> None:
        self.draw, self.quality, self.checkpoint = np.random.default_rng(5), Prequential(), 0
        self.model = self.served = self.shift, 1.0
        self.present_S = np.zeros(2, np.int64)
        self.has_field = True
        self.served_checkpoint = 0

    def snapshot(self, labels: Labels = clicks, target: tuple[float, float] | None = None) -> Judgement:
        """The next snapshot; target: what the model learns from its samples, by default what is real."""
        odds_B = USUAL_ODDS + self.draw.normal(0, 1.2, SAMPLES)
        clicked_B = labels(odds_B + self.shift, self.draw)
        model_B, served_B = (slope * odds_B + shift for shift, slope in (self.model, self.served))
        self.quality.add(model_B, clicked_B.astype(np.float64))
        self.checkpoint += 1
        self.present_S = self.present_S + np.array([SAMPLES, SAMPLES * self.has_field])
        scores = scored(clicked_B, probabilities(model_B), probabilities(served_B))
        reference = ReferenceScores(scores, self.served_checkpoint, self.served_checkpoint)
        judged = judge(
            self.rule,
            self.state,
            CheckpointReadings(
                recent_quality(self.quality.save(), self.rule.samples),
                trained=self.checkpoint * SAMPLES,
                rows=1000,
                changed=100,
                non_finite=0,
                number=self.checkpoint,
                step=self.checkpoint,
                reference=reference if self.has_server and self.served_checkpoint else None,
                fields=PresentCounts(self.checkpoint * SAMPLES, self.present_S),
                field_names=("user", "item"),
            ),
        )
        wanted = target or (self.shift, 1.0)
        self.model = tuple(now + LEARNT * (to - now) for now, to in zip(self.model, wanted, strict=True))  # type: ignore[assignment]
        self.state = judged.state
        if judged.verdict.is_good:
            self.served, self.served_checkpoint = self.model, self.checkpoint
        return judged

    def calm(self, snapshots: int = 20) -> "Stream":
        assert all(self.snapshot().verdict.is_good for _ in range(snapshots))
        return self

    def until_good(self, **named: Any) -> int:
        """Snapshots that are held back before the next good one."""
        return next(held for held in range(200) if self.snapshot(**named).verdict.is_good)


def test_a_calm_stream_is_never_held_back() -> None:
    for has_server in (True, False):
        Stream(has_server=has_server).calm(60)
        Stream(has_server=has_server, shift=-3.0).calm(60)  # one click in a hundred samples


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_labels_never_become_right_and_the_first_good_snapshot_after_them_goes_out(fault: str) -> None:
    stream = Stream().calm()
    served = stream.served
    judged = [stream.snapshot(FAULTS[fault], WHAT_IS_LEARNT[fault]) for _ in range(60)]
    assert not any(snapshot.verdict.is_good for snapshot in judged)
    assert stream.served == served
    assert stream.until_good() <= 6
    assert abs(stream.served[0] - served[0]) < 0.3
    stream.calm()


@pytest.mark.parametrize("fault", FAULTS)
def test_without_a_server_averages_hold_wrong_labels_back(fault: str) -> None:
    stream = Stream(has_server=False).calm()
    judged = [stream.snapshot(FAULTS[fault], WHAT_IS_LEARNT[fault]) for _ in range(40)]
    assert sum(snapshot.verdict.is_good for snapshot in judged) <= 2
    assert not any(snapshot.verdict.is_good for snapshot in judged[2:])
    assert all("(no reference)" in snapshot.verdict.reasons[0] for snapshot in judged[2:])
    assert stream.until_good() <= 10
    stream.calm()


def test_without_a_server_a_lasting_change_that_looked_like_wrong_labels_is_accepted_in_time() -> None:
    stream = Stream(has_server=False, rule=replace(RULE, samples=1000)).calm()
    assert 10 < stream.until_good(labels=FAULTS["inverted"], target=WHAT_IS_LEARNT["inverted"]) < 100


def test_zeros_are_found_where_clicks_are_rare() -> None:
    stream = Stream(shift=-3.0).calm(40)
    judged = [stream.snapshot(FAULTS["zeros"], WHAT_IS_LEARNT["zeros"]) for _ in range(60)]
    held = [not snapshot.verdict.is_good for snapshot in judged]
    assert all(held[held.index(True) :])
    assert held.index(True) <= 2
    assert "samples are no clicks" in judged[-1].verdict.reasons[0]


@pytest.mark.parametrize("has_server", [True, False])
def test_a_click_rate_that_really_is_ten_times_as_high_goes_out(has_server: bool) -> None:
    stream = Stream(has_server=has_server, shift=-3.0).calm()
    stream.shift = 0.0
    assert stream.until_good() <= 10
    stream.calm(40)
    assert abs(stream.served[0]) < 0.1


@pytest.mark.parametrize("has_server", [True, False])
def test_a_slow_drift_goes_out_all_the_time(has_server: bool) -> None:
    stream = Stream(has_server=has_server).calm()
    for snapshot in range(60):
        stream.shift = -2.0 * np.sin(snapshot / 10)
        assert stream.snapshot().verdict.is_good


@pytest.mark.parametrize("has_server", [True, False])
def test_a_field_that_is_gone_holds_snapshots_back_until_it_is_there_again(has_server: bool) -> None:
    stream = Stream(has_server=has_server).calm()
    stream.has_field = False
    for _ in range(50):
        assert stream.snapshot().verdict.reasons[0].startswith("field item is in 0.0% of the 1000 samples")
    stream.has_field = True
    stream.calm()


def test_a_model_that_is_worse_than_what_is_served_is_held_back_on_right_labels() -> None:
    stream = Stream().calm()
    stream.model = 0.0, -0.5
    reasons = stream.snapshot(target=(0.0, -0.5)).verdict.reasons
    assert any("by the served snapshot; expected" in reason for reason in reasons)
    assert stream.until_good() <= 8


def test_a_snapshot_that_a_person_lets_out_is_the_usual_from_then_on() -> None:
    stream = Stream().calm()
    for _ in range(20):
        assert not stream.snapshot(FAULTS["inverted"], WHAT_IS_LEARNT["inverted"]).verdict.is_good
    stream.served, stream.served_checkpoint = stream.model, stream.checkpoint
    assert stream.until_good(labels=FAULTS["inverted"], target=WHAT_IS_LEARNT["inverted"]) <= 5
    assert all(stream.snapshot(FAULTS["inverted"], WHAT_IS_LEARNT["inverted"]).verdict.is_good for _ in range(50))


def test_a_server_that_stays_at_an_old_snapshot_is_not_the_reference() -> None:
    stream = Stream().calm(CURRENT_SNAPSHOTS + 5)
    stream.served, stream.served_checkpoint, used = (0.0, -1.0), 1, []
    for _ in range(50):
        judged = stream.snapshot()
        used.append(judged.figures.reference_step)
        stream.served, stream.served_checkpoint = (0.0, -1.0), 1
        assert judged.verdict.is_good
    assert set(used) == {-1}


def test_a_restart_in_the_middle_of_a_hold_goes_on_where_it_was() -> None:
    stream = Stream().calm()
    for _ in range(10):
        stream.snapshot(FAULTS["inverted"], WHAT_IS_LEARNT["inverted"])
    stream.state = load_state(save_state(DispatcherState(1, decided(), trained(), stream.state))).gate
    assert stream.state.held is not None
    assert stream.state.held.are_labels_suspect
    assert not stream.snapshot(FAULTS["inverted"], WHAT_IS_LEARNT["inverted"]).verdict.is_good
    stream.has_server = False  # it may take longer to come back
    for _ in range(20):
        assert not stream.snapshot(FAULTS["inverted"], WHAT_IS_LEARNT["inverted"]).verdict.is_good
    stream.has_server = True
    assert stream.until_good() <= 6


# ── one checkpoint
# ───────────────────────────────────────────────────────────────────────────────────────────────────────────
USUAL = GateState(usual=Usual(0.2, 0.75, 0.9), changed_share=0.1, samples=50_000)
GOOD = Quality(
    samples=4096, clicks=800, logloss=0.41, auc=0.76, normalized_entropy=0.9, calibration=1.0, predicted_clicks=800.0
)


def readings(**values: Any) -> CheckpointReadings:
    recent = {name: values.pop(name) for name in tuple(values) if name in Quality.__struct_fields__}
    known = CheckpointReadings(GOOD, trained=51_000, rows=1000, changed=120, non_finite=0, number=9)
    quality = Quality(**{**{name: getattr(GOOD, name) for name in Quality.__struct_fields__}, **recent})
    return known._replace(recent=quality, **values)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, None),
        ({"normalized_entropy": 1.03}, None),
        ({"normalized_entropy": 1.04}, "over the entropy of their click rate is 1.040"),
        ({"predicted_clicks": 1125.0}, None),  # a quarter, and 5 standard deviations
        ({"predicted_clicks": 1160.0}, "1160 clicks are predicted"),
        ({"predicted_clicks": 400.0}, "400 clicks are predicted"),
        ({"clicks": 0, "auc": None, "normalized_entropy": None, "predicted_clicks": 0.0}, "0 of the latest 4096"),
        ({"clicks": 4096, "auc": None, "predicted_clicks": 4096.0}, "0 of the latest 4096 samples are no clicks"),
        ({"auc": 0.64}, None),
        ({"auc": 0.61}, "AUC of the latest 4096 samples is 0.610"),
        ({"changed": 599}, None),
        ({"changed": 601}, "60.1% of all rows have changed"),
        ({"changed": None}, None),
        ({"non_finite": 3}, "3 values of rows or dense weights are not finite"),
        ({"not_finite": 2}, "2 recent predictions are not finite"),
        ({"samples": 999, "clicks": 0, "auc": 0.2, "changed": 1000}, None),
        ({"samples": 0, "logloss": None, "non_finite": 1}, "1 values"),
    ],
)
def test_each_figure_out_of_its_band_holds_a_snapshot_back(values: dict[str, Any], reason: str | None) -> None:
    verdict = judge(RULE, USUAL, readings(**values)).verdict
    assert verdict.is_good is (reason is None)
    assert reason is None or (len(verdict.reasons) == 1 and reason in verdict.reasons[0])


def test_first_figures_are_the_usual_that_later_ones_are_compared_with() -> None:
    first = judge(RULE, GateState(), readings(normalized_entropy=0.8, changed=900))
    assert first.verdict.is_good
    assert first.state.usual == Usual(800 / 4096, 0.76, 0.8)
    assert (first.state.changed_share, first.state.samples) == (0.9, 51_000)
    assert judge(RULE, GateState(), readings(samples=4095)).state.usual is None


def test_the_usual_follows_good_checkpoints_by_samples_and_never_bad_ones() -> None:
    good = judge(RULE, USUAL, readings(auc=0.8, trained=50_000 + 8 * 4096)).state
    few = judge(RULE, USUAL, readings(auc=0.8, trained=50_100)).state
    bad = judge(RULE, USUAL, readings(auc=0.5, changed=200, trained=50_000 + 8 * 4096)).state
    assert good.usual is not None
    assert good.usual.auc == pytest.approx(0.75 + 0.05 * (1 - np.exp(-1)))
    assert few.usual is not None
    assert 0.75 < (few.usual.auc or 0) < 0.751
    assert bad.usual == USUAL.usual
    assert bad.held == Held(9, 50_000 + 8 * 4096, True)
    assert bad.changed_share == pytest.approx(0.1 + 0.1 * 0.1 * (1 - np.exp(-1)))


def test_wider_bands_let_more_through() -> None:
    wide = replace(RULE, logloss=2.0, calibration=2.0, changed_share=1.0)
    assert judge(wide, USUAL, readings(normalized_entropy=2.0, predicted_clicks=2400.0, changed=1000)).verdict.is_good


def test_recent_quality_is_that_of_the_latest_samples_only() -> None:
    random = np.random.default_rng(3)
    logits, labels = random.normal(size=70).astype(np.float32), (random.random(70) < 0.3).astype(np.float32)
    kept, latest = Prequential(recent_samples=50), Prequential()
    kept.add(logits[:40], labels[:40])
    kept.add(logits[40:], labels[40:])
    latest.add(logits[50:][::-1], labels[50:][::-1])
    assert recent_quality(kept.save(), 20) == latest.overall()
    assert recent_quality(kept.save(), 500).samples == 50
    assert recent_quality(Prequential().save(), 5).samples == 0

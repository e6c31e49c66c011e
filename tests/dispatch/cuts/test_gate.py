from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dispatch.cuts.gate import CutReadings, GateState, judge
from dispatch.job import GateRule
from dispatch.progress.prequential import Prequential, Quality, recent_quality

RULE = GateRule(samples=1000)
USUAL = GateState(logloss=0.4, changed_share=0.1, samples=50_000)
GOOD = Quality(samples=1000, clicks=200, logloss=0.41, calibration=1.02)


def readings(**values: Any) -> CutReadings:
    recent = {name: values.pop(name) for name in tuple(values) if name in Quality.__struct_fields__}
    known = CutReadings(GOOD, trained=51_000, rows=1000, changed=120, non_finite=0)
    quality = Quality(**{**{name: getattr(GOOD, name) for name in Quality.__struct_fields__}, **recent})
    return known._replace(recent=quality, **values)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, None),
        ({"logloss": 0.459}, None),
        ({"logloss": 0.461}, "logloss of the latest 1000 samples is 0.4610"),
        ({"calibration": 1.46}, None),  # 0.25, and 3 standard deviations of 200 clicks
        ({"calibration": 1.47}, "1.470 clicks are predicted"),
        ({"calibration": 0.5}, "0.500 clicks are predicted"),
        ({"calibration": None, "clicks": 0}, None),
        ({"changed": 599}, None),
        ({"changed": 601}, "60.1% of all rows have changed"),
        ({"changed": None}, None),
        ({"non_finite": 3}, "3 values of rows or dense weights are not finite"),
        ({"not_finite": 2}, "2 recent predictions are not finite"),
        ({"samples": 999, "logloss": 9.0, "calibration": 9.0, "changed": 1000}, None),
        ({"samples": 0, "logloss": None, "non_finite": 1}, "1 values"),
    ],
)
def test_each_figure_out_of_its_band_holds_a_version_back(values: dict[str, Any], reason: str | None) -> None:
    verdict = judge(RULE, USUAL, readings(**values)).verdict
    assert verdict.is_good is (reason is None)
    assert reason is None or (len(verdict.reasons) == 1 and reason in verdict.reasons[0])


def test_first_figures_are_the_averages_that_later_ones_are_compared_with() -> None:
    first = judge(RULE, GateState(), readings(logloss=0.6, changed=900))
    assert first.verdict.is_good
    assert first.state == GateState(0.6, 0.9, 51_000)
    assert first.figures.average_logloss == 0.0
    assert judge(RULE, first.state, readings(logloss=0.7)).figures.average_logloss == 0.6
    assert judge(RULE, GateState(), readings(samples=999)).state == GateState()


def test_averages_follow_good_cuts_by_samples_and_bad_ones_slowly() -> None:
    good = judge(RULE, USUAL, readings(logloss=0.44, trained=58_000)).state
    few = judge(RULE, USUAL, readings(logloss=0.44, trained=50_100)).state
    bad = judge(RULE, USUAL, readings(logloss=0.8, trained=58_000)).state
    assert few.logloss is not None
    assert good.logloss == pytest.approx(0.4 + 0.04 * (1 - np.exp(-1)))
    assert 0.4 < few.logloss < 0.401
    assert bad.logloss == pytest.approx(0.4 + 0.1 * 0.4 * (1 - np.exp(-1)))


def test_lasting_change_is_accepted_in_time() -> None:
    state, held = USUAL, 0
    for cut in range(200):
        judged = judge(RULE, state, readings(logloss=0.6, trained=50_000 + 1000 * (cut + 1)))
        state, held = judged.state, held + (not judged.verdict.is_good)
    assert 20 < held < 150
    assert judged.verdict.is_good


def test_wider_bands_let_more_through() -> None:
    wide = replace(RULE, logloss=2.0, calibration=2.0, changed_share=1.0)
    assert judge(wide, USUAL, readings(logloss=1.1, calibration=2.5, changed=1000)).verdict.is_good


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

"""Alarms of made-up streams: one soon after a jump, and none without one."""

import numpy as np
import pytest
from numpy.typing import NDArray

from dispatch.progress.drift import LABEL, Drift, DriftTerms, distances
from ingest.samples import Samples
from ingest.schema import KeyTable, Schema

SCHEMA = Schema(name="made-up", tables=(KeyTable(name="site"), KeyTable(name="tags", values=2)))
TERMS = DriftTerms(label_change=0.25, field_change=0.3, window_samples=2000)
BATCH, JUMP, STEPS = 250, 40, 80
MIX = np.uint64(0x9E3779B97F4A7C15)


def batch_of(draw: np.random.Generator, rate: float, values: NDArray[np.int64]) -> Samples:
    keys_BF = draw.choice(values, (BATCH, 3)).astype(np.uint64) * MIX
    labels_B = (draw.random(BATCH) < rate).astype(np.float32)
    return Samples(labels_B, np.empty((BATCH, 0), np.float32), keys_BF, np.zeros(BATCH))


def watched(rate: float, rate_after: float, seed: int, other_values: bool = False) -> Drift:
    """A stream that changes after the step JUMP."""
    draw = np.random.default_rng(seed)
    drift = Drift(TERMS, SCHEMA)
    values = np.arange(1, 200)
    for step in range(1, STEPS + 1):
        is_after = step > JUMP
        chosen = values + 1000 if other_values and is_after else values
        drift.add(step, batch_of(draw, rate_after if is_after else rate, chosen[:20] if other_values else chosen))
    return drift


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("rate", "rate_after"), [(0.2, 0.4), (0.3, 0.15), (0.6, 0.9)])
def test_a_jump_of_the_click_rate_raises_one_alarm_soon_after_it(rate: float, rate_after: float, seed: int) -> None:
    (alarm,) = watched(rate, rate_after, seed).status.alarms
    assert alarm.what == LABEL
    assert JUMP * BATCH < alarm.sample < JUMP * BATCH + 2500
    assert alarm.step == (alarm.sample - 1) // BATCH + 1
    assert alarm.before == pytest.approx(rate, abs=0.05)
    assert alarm.after == pytest.approx(rate_after, abs=0.12)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rate", [0.0, 0.02, 0.3, 1.0])
def test_a_stationary_stream_raises_none(rate: float, seed: int) -> None:
    status = watched(rate, rate, seed).status
    assert (status.alarms, status.label_alarms, status.field_alarms) == ((), 0, 0)
    assert max(status.fields.values()) < 0.1


def test_other_values_of_a_field_raise_an_alarm_once() -> None:
    drift = watched(0.3, 0.3, seed=1, other_values=True)
    alarms = {alarm.what: alarm.sample for alarm in drift.status.alarms}
    assert alarms == {"site": 12_000, "tags": 12_000}, "at the end of the first window with other values"
    assert (drift.status.field_alarms, drift.status.label_alarms) == (2, 0)
    assert max(drift.status.fields.values()) < 0.1, "the windows after it are equal again"


def test_nothing_raises_an_alarm_if_both_are_turned_off() -> None:
    draw = np.random.default_rng(2)
    drift = Drift(DriftTerms(0.0, 0.0, 500), SCHEMA)
    for step in range(1, 21):
        drift.add(step, batch_of(draw, 0.1 + 0.8 * (step > 10), np.arange(20) + 100 * step))
    assert drift.status.alarms == ()
    assert min(drift.status.fields.values()) > 0.3


def test_a_saved_state_continues_as_if_nothing_had_happened() -> None:
    one, other = Drift(TERMS, SCHEMA), Drift(TERMS, SCHEMA)
    draw = np.random.default_rng(3)
    for step in range(1, STEPS + 1):
        batch = batch_of(draw, 0.2 if step <= JUMP else 0.5, np.arange(1, 50))
        one.add(step, batch)
        other.add(step, batch)
        continued = Drift(TERMS, SCHEMA)
        continued.load(other.save())
        other = continued
    assert one.status == other.status
    assert len(one.status.alarms) == 1


def test_the_size_of_batches_changes_nothing_but_the_tolerance_s_last_digits() -> None:
    draw = np.random.default_rng(4)
    batches = [batch_of(draw, 0.2 if step <= JUMP else 0.5, np.arange(1, 50)) for step in range(1, STEPS + 1)]
    whole, halves = Drift(TERMS, SCHEMA), Drift(TERMS, SCHEMA)
    for step, batch in enumerate(batches, 1):
        whole.add(step, batch)
        halves.add(step, batch.slice(0, 125))
        halves.add(step, batch.slice(125, BATCH))
    (one,), (other,) = whole.status.alarms, halves.status.alarms
    assert abs(one.sample - other.sample) < 50
    assert whole.status.fields == halves.status.fields


@pytest.mark.parametrize(
    ("counts", "before", "expected"),
    [([100, 0], [0, 100], 1.0), ([5000, 5000], [5000, 5000], 0.0), ([0, 10_000], [5000, 5000], 0.558)],
)
def test_the_distance_is_that_of_jensen_and_shannon(counts: list[int], before: list[int], expected: float) -> None:
    assert distances(np.array([counts]), np.array([before])) == pytest.approx([expected], abs=0.005)

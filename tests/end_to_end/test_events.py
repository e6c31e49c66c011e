"""Events as people have them: any workers equal one process, crashes cost no bit, and metrics are by weight.

One schema has all of it, so that every path is run with every other.
"""

from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dispatch.dense import Reduce
from dispatch.progress.prequential import Prequential
from ingest.convert import Event
from ingest.producing.synthetic import synthetic_events
from ingest.samples import Samples
from ingest.sampling import choose_samples, weigh_negatives
from ingest.schema import parse_schema
from ps.config import CheckpointConfig, RowConfig
from tests.end_to_end.crashing import Strike, check_run, train_struck
from tests.end_to_end.test_exactness import expect_equal, rows_of
from tests.end_to_end.threads import SMALL_MODEL, Plan, Result, batches, new_reference, score, train, train_reference
from tests.ingest.topics import write_json
from trainer.reference import Reference

EVENTS, BATCH = 1000, 64
SCHEMA = """
name = "rich"
partition_by = "user"
labels = ["click", "purchase"]
weight = "worth"
keep_negatives = 0.6
negatives_kept = 0.8
crosses = [["user", "device"]]
tables = [{name = "user"}, {name = "item"}, {name = "device"}, {name = "hour"},
          {name = "topics", values = 4, pool = "sum"}, {name = "history", values = 5, pool = "mean", truncate = true},
          {name = "moods", source = "topics", values = 4, pool = "attention"},
          {name = "seen", source = "history", values = 6, pool = "attention", query = "item", rows_of = "item"}]
dense_fields = [{name = "idle_seconds"}, {name = "price", max = 100000}]
"""
KNOWN = 'name = "known"\ntables = [{name = "user"}, {name = "item"}]'


@cache
def rich_events(count: int) -> tuple[Event, ...]:
    """Clicks of which most have a weight and say whether there was a purchase, with weighed topics, and a history in
    which items repeat.
    """
    draw = np.random.default_rng(11)
    found = []
    for event in islice(synthetic_events(3), count):
        fields: dict[str, Any] = dict(event.fields)
        if draw.random() < 0.8:
            fields["worth"] = float(draw.integers(0, 5)) / 2
        chosen = draw.choice(9, draw.integers(0, 5), replace=False)
        fields["topics"] = {f"t{topic}": float(draw.integers(0, 8)) / 4 for topic in chosen}
        fields["history"] = draw.integers(0, 30, draw.integers(0, 7)).tolist()
        labels: dict[str, int | None] = {"purchase": int(draw.random() < 0.1 + 0.3 * event.label)}
        found.append(Event(event.event_time, event.label, fields, labels if draw.random() < 0.7 else {}))
    return tuple(found)


@pytest.fixture
def rich(tmp_path: Path) -> dict[str, Any]:
    """A topic of such events, and the schema that reads it."""
    (tmp_path / "rich.toml").write_text(SCHEMA)
    write_json(tmp_path / "run" / "log", rich_events(EVENTS))
    return {"folder": tmp_path / "run", "schema_name": str(tmp_path / "rich.toml"), "batch": BATCH, "cache_rows": 1600}


def expect_quality(result: Result, plan: Plan, tolerance: float) -> None:
    """The metrics are those of one process."""
    reference, clicks, purchases = new_reference(plan), Prequential(), Prequential()
    for samples in batches(plan, result.manifests):
        if samples.weights_B is not None and samples.more_labels_BL is not None:
            logits_BM = score(reference, samples)
            clicks.add(logits_BM[:, 0], samples.labels_B, samples.weights_B)
            known = ~np.isnan(samples.more_labels_BL[:, 0])
            purchases.add(logits_BM[known, 1], samples.more_labels_BL[known, 0], samples.weights_B[known])
    got = result.status.quality
    for one, expected in [(got, clicks.overall()), (result.status.labels["purchase"].quality, purchases.overall())]:
        for name in ("logloss", "auc", "calibration", "normalized_entropy"):
            assert getattr(one, name) == pytest.approx(getattr(expected, name), rel=tolerance), name
    assert 0 < purchases.overall().samples < clicks.overall().samples
    assert got.weights is not None
    assert got.weights.total != got.samples


@pytest.mark.parametrize(
    ("workers", "policy", "reduce"),
    [(1, "esd:1", "hub"), (2, "esd:1", "hub"), (4, "joint:2:elastic", "hub"), (3, "fae:0.15:4", "ring")],
)
def test_any_workers_equal_one_process(rich: dict[str, Any], workers: int, policy: str, reduce: Reduce) -> None:
    model = SMALL_MODEL.model_copy(update={"label_smoothing": 0.05})
    plan = Plan(workers=workers, policy=policy, reduce=reduce, rows=rows_of("adagrad", "float64"), model=model, **rich)
    result = train(plan)
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-9)
    expect_quality(result, plan, tolerance=1e-9)
    counts = result.status.events
    assert counts.omitted > 0
    assert (result.status.samples + counts.omitted, counts.lag) == (EVENTS, 0)


@pytest.mark.parametrize("workers", [2, 4])
def test_metrics_in_single_precision_are_those_of_one_process(rich: dict[str, Any], workers: int) -> None:
    plan = Plan(workers=workers, **rich)
    expect_quality(train(plan), plan, tolerance=1e-6)


def test_crashes_cost_time_and_no_bit(rich: dict[str, Any]) -> None:
    often = CheckpointConfig(seconds=0.02, kept=1000)
    plan = Plan(rows=RowConfig(dim=4, chunks=2), checkpoints=often, **rich)
    result = train_struck(plan, Strike("backward", 4), Strike("journalled", 9))
    history = check_run(plan, result, result.status.samples)
    assert sum(step.manifest.samples + step.manifest.omitted for step in history.steps) == EVENTS
    assert result.status.events.omitted == EVENTS - result.status.samples


def test_predictions_stay_calibrated_if_few_negatives_are_trained() -> None:
    """The truth is known: 2.5 million events whose probability is drawn first. Chance alone makes about 0.2 %."""
    schema = parse_schema(f"keep_negatives = 0.2\n{KNOWN}", "known")
    draw, size, steps = np.random.default_rng(5), 16384, 150
    effects = draw.normal(0, 1, (2, 20))
    reference = Reference(RowConfig(dim=4).of_run(size, 2), SMALL_MODEL, 2, 0, seed=7, batch=size)
    predicted = truth = trained = 0.0
    for step in range(steps):
        values_B2 = draw.integers(0, 20, (size, 2))
        odds_B = effects[0, values_B2[:, 0]] + effects[1, values_B2[:, 1]] - 1.5
        labels_B = (draw.random(size) < 1 / (1 + np.exp(-odds_B))).astype(np.float32)
        keys_BF = (values_B2 + np.array([1, 101])).astype(np.uint64)
        whole = Samples(labels_B, np.empty((size, 0), np.float32), keys_BF, np.full(size, float(step)))
        whole = replace(whole, weights_B=weigh_negatives(whole, schema))
        at_B = np.stack([step * size + np.arange(size), np.zeros(size)], 1).astype(np.int64)
        if step >= steps // 2:
            logits_B = reference.predict(keys_BF, whole.dense_BN).astype(np.float64)
            predicted += float((1 / (1 + np.exp(-logits_B))).sum())
            truth += float((1 / (1 + np.exp(-odds_B))).sum())
        kept = whole.where(choose_samples(whole, at_B, schema))
        score(reference, kept)
        trained += len(kept)
    assert trained < 0.5 * steps * size
    assert predicted / truth == pytest.approx(1, abs=0.01)

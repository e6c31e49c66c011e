"""Crosses that are found in made-up clicks: where two tables decide together, and nowhere else."""

import numpy as np
import pytest
from numpy.typing import NDArray

from ingest.cross_search import (
    CrossSearch,
    LabelledRows,
    Numbered,
    batch_ends,
    predict,
    predict_reference,
    suggest_crosses,
)
from ingest.crosses import Suggestions
from ingest.samples import Samples
from ingest.schema import KeyTable, Schema, parse_schema

SCHEMA = Schema(name="made-up", tables=tuple(KeyTable(name=name) for name in ("a", "b", "c", "d", "e", "f")))
ROWS = 6000


def draw_values(draw: np.random.Generator) -> NDArray[np.int64]:
    return draw.integers(0, [6, 8, 10, 12, 20, 40], (ROWS, 6))


def samples_of(draw: np.random.Generator, values_BE: NDArray[np.int64], logits_B: NDArray[np.float64]) -> Samples:
    """Samples with these log-odds; the key of a value is a number that no other table has."""
    labels_B = (draw.random(ROWS) < 1 / (1 + np.exp(-logits_B))).astype(np.float32)
    keys_BE = (values_BE + 1000 * np.arange(6)).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return Samples(labels_B, np.empty((ROWS, 0), np.float32), keys_BE, np.arange(ROWS, dtype=np.float64))


@pytest.fixture(scope="module")
def planted() -> Suggestions:
    """Found where a and d decide together, and b alone."""
    draw = np.random.default_rng(3)
    values_BE = draw_values(draw)
    together = draw.normal(0, 1.5, (6, 12))[values_BE[:, 0], values_BE[:, 3]]
    alone = draw.normal(0, 0.7, 8)[values_BE[:, 1]]
    return suggest_crosses(samples_of(draw, values_BE, together + alone - 1), SCHEMA)


def test_a_planted_interaction_is_the_only_one_found(planted: Suggestions) -> None:
    (found,) = planted.crosses
    assert (found.tables, found.keys) == (("a", "d"), 72)
    assert found.gain == pytest.approx(planted.logloss - planted.crossed_logloss)
    assert found.gain > 0.02


def test_the_line_is_one_of_a_schema(planted: Suggestions) -> None:
    schema = parse_schema(f'name = "x"\n{planted.line}\ntables = [{{name = "a"}}, {{name = "d"}}]', "x")
    assert schema.crosses == (("a", "d"),)


@pytest.mark.parametrize("seed", range(3))
def test_noise_suggests_nothing(seed: int) -> None:
    draw = np.random.default_rng(seed)
    found = suggest_crosses(samples_of(draw, draw_values(draw), np.full(ROWS, -1.0)), SCHEMA)
    assert (found.crosses, found.crossed_logloss) == ((), found.logloss)


def test_three_tables_that_decide_together_are_found_by_way_of_a_pair() -> None:
    draw = np.random.default_rng(5)
    values_BE = draw_values(draw)
    pair = draw.normal(0, 1.0, (6, 8))[values_BE[:, 0], values_BE[:, 1]]
    triple = draw.normal(0, 2.0, (6, 8, 10))[values_BE[:, 0], values_BE[:, 1], values_BE[:, 2]]
    found = suggest_crosses(samples_of(draw, values_BE, pair + triple), SCHEMA).crosses
    assert ("a", "b", "c") in [cross.tables for cross in found]


def test_a_table_that_follows_from_another_is_not_combined_with_it() -> None:
    draw = np.random.default_rng(6)
    values_BE = draw_values(draw)
    values_BE[:, 1] = values_BE[:, 4] % 8
    samples = samples_of(draw, values_BE, draw.normal(0, 2.0, 20)[values_BE[:, 4]])
    assert suggest_crosses(samples, SCHEMA).crosses == ()


def test_the_model_learns_as_its_reference_does() -> None:
    draw = np.random.default_rng(9)
    ids_BE = draw_values(draw)[:500].astype(np.int32)
    columns = [Numbered(ids_B, 40) for ids_B in ids_BE.T]
    rows = LabelledRows(draw.integers(0, 2, 500).astype(np.float32), batch_ends(500), first=100)
    np.testing.assert_allclose(predict(columns, rows, 0.2), predict_reference(columns, rows, 0.2), rtol=1e-9)


@pytest.mark.parametrize("rows", [0, 1, 40])
def test_few_events_suggest_nothing(rows: int) -> None:
    draw = np.random.default_rng(7)
    few = samples_of(draw, draw_values(draw), np.zeros(ROWS)).slice(0, rows)
    assert suggest_crosses(few, SCHEMA).crosses == ()


def test_no_prediction_knows_its_own_batch() -> None:
    """Labels of a batch do not change the logits of that batch, nor of those before it."""
    draw = np.random.default_rng(8)
    samples = samples_of(draw, draw_values(draw), np.zeros(ROWS))
    start = int(batch_ends(ROWS)[-2])
    other_B = samples.labels_B.copy()
    other_B[start:] = 1 - other_B[start:]
    logits = [CrossSearch(labels_B, samples.keys_BF, SCHEMA).logits_B for labels_B in (samples.labels_B, other_B)]
    assert np.array_equal(logits[0], logits[1])

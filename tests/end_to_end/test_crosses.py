"""Crosses are keys as others are: any workers equal one process, crashes cost no bit, and the model is served."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dispatch.dense import Reduce
from infra.base.errors import ConfigError
from infra.run.checks import check_wide
from infra.run.settings import load_settings
from ps.config import CheckpointConfig, RowConfig
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.crashing import Strike, check_run, train_struck
from tests.end_to_end.test_exactness import expect_equal, rows_of
from tests.end_to_end.threads import Plan, batches, new_reference, train, train_reference

EVENTS, BATCH, DIM = 1000, 64, 8
CROSSES = 'crosses = [["user", "device"], ["item", "hour"], ["category", "position", "idle_bucket"]]\n'
BUILT_IN = Path("ingest/schemas/synthetic.toml")


@pytest.fixture
def crossed(tmp_path: Path) -> str:
    """The synthetic schema with crosses; it reads the topics that were packed without them."""
    path = tmp_path / "crossed.toml"
    path.write_text(BUILT_IN.read_text().replace('name = "synthetic"\n', f'name = "crossed"\n{CROSSES}', 1))
    return str(path)


@pytest.mark.parametrize(
    ("workers", "policy", "reduce"),
    [
        (1, "esd:1", "hub"),
        (2, "esd:1", "hub"),
        (4, "joint:2:elastic", "hub"),
        (4, "esd:1", "ring"),
        (3, "fae:0.15:4", "ring"),
    ],
)
def test_crosses_trained_by_any_workers_equal_one_process(
    write_topic: WriteTopic, crossed: str, workers: int, policy: str, reduce: Reduce
) -> None:
    growing: dict[str, Any] = {"batch": BATCH, "first_batch": 16, "batch_growth": 8}
    rows = rows_of("adagrad", "float64")
    topic = write_topic(EVENTS, packed=16)
    plan = Plan(topic, workers, policy, cache_rows=1500, rows=rows, schema_name=crossed, reduce=reduce, **growing)
    result = train(plan)
    assert result.status.samples == EVENTS
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-9)


def test_the_embedding_of_a_cross_is_never_used_nor_changed(write_topic: WriteTopic, crossed: str) -> None:
    plan = Plan(write_topic(EVENTS), 2, batch=BATCH, rows=rows_of("adagrad"), schema_name=crossed)
    result = train(plan)
    samples, reference, untrained = batches(plan, result.manifests), new_reference(plan), new_reference(plan)
    for batch in samples:
        reference.step(batch.keys_BF, batch.dense_BN, batch.labels_B)
        untrained.numbering.number(batch.keys_BF)
    keys = np.unique(np.concatenate([batch.keys_BF[:, -3:].reshape(-1) for batch in samples]))
    untrained.grow(untrained.numbering.known()[0])
    places = [reference.numbering.row(key) for key in keys.tolist()]
    np.testing.assert_array_equal(result.rows_RT[places, :DIM], untrained.rows()[places, :DIM])
    assert (result.rows_RT[places, DIM] != 0).all(), "wide weights"


def test_crashes_in_a_run_with_crosses_cost_time_and_no_bit(write_topic: WriteTopic, crossed: str) -> None:
    often = CheckpointConfig(seconds=0.02, kept=1000)
    rows = RowConfig(dim=4, chunks=2)
    plan = Plan(write_topic(EVENTS, poison=0.05), batch=BATCH, rows=rows, schema_name=crossed, checkpoints=often)
    result = train_struck(plan, Strike("backward", 4), Strike("journalled", 9))
    check_run(plan, result, EVENTS)


def test_crosses_of_rows_without_wide_weights_are_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match=r"has 7 crosses, and rows\.wide is false"):
        check_wide(load_settings(None, ["stream.schema_name=avazu", "rows.wide=false"]))
    check_wide(load_settings(None, ["stream.schema_name=avazu", "rows.wide=false", "stream.crosses=false"]))

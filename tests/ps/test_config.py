"""Settings of rows and shards."""

from typing import Any

import pytest
from pydantic import ValidationError

from ps.config import PsConfig, RowConfig


@pytest.mark.parametrize(
    ("optimizer", "wide", "state"),
    [
        ("sgd", True, 0),
        ("sgd", False, 0),
        ("adagrad", True, 17),
        ("adagrad", False, 16),
        ("rowwise_adagrad", True, 2),
        ("rowwise_adagrad", False, 1),
    ],
)
def test_optimizer_decides_how_much_state_a_row_has(optimizer: str, wide: bool, state: int) -> None:
    shape = RowConfig.model_validate({"optimizer": optimizer, "wide": wide}).shape()
    assert (shape.value, shape.state, shape.total) == (16 + wide, state, 16 + wide + state)


@pytest.mark.parametrize("fields", [{"dim": 0}, {"rate": 0.0}, {"optimizer": "adam"}, {"float_dtype": "float16"}])
def test_impossible_row_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        RowConfig.model_validate(fields)


@pytest.mark.parametrize("fields", [{"shards": 0}, {"chunk_rows": 0}, {"shard": 2}])
def test_impossible_layout_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        PsConfig.model_validate(fields)


@pytest.mark.parametrize(
    ("settings", "whole", "without_chunks", "chunk"),
    [
        ({"dim": 16}, 160, 48, 64),
        ({"dim": 128}, 1056, 48, 512),
        ({"dim": 16, "optimizer": "sgd", "wide": False}, 88, 40, 32),
        ({"dim": 16, "optimizer": "rowwise_adagrad", "float_dtype": "float64"}, 176, 72, 64),
    ],
)
def test_a_key_costs_what_the_formula_says(
    settings: dict[str, Any], whole: int, without_chunks: int, chunk: int
) -> None:
    pruned = RowConfig.model_validate({**settings, "chunks": 2})
    assert RowConfig.model_validate(settings).key_bytes == whole
    assert (pruned.key_bytes, pruned.chunk_bytes()) == (without_chunks, chunk)

"""What follows from a job's settings."""

from pathlib import Path

import pytest

from dispatch.config import DispatchConfig
from dispatch.job import DispatchJob
from ingest.config import StreamConfig
from ingest.schema import load_schema
from ps.config import OptimizerName, RowConfig


def job_with(rows: RowConfig) -> DispatchJob:
    return DispatchJob("r", 0, Path(), StreamConfig(), DispatchConfig(), load_schema("synthetic"), rows, shards=1)


@pytest.mark.parametrize("dim", [12, 1200])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(("optimizer", "with_state"), [("sgd", 1), ("rowwise_adagrad", 1), ("adagrad", 2)])
def test_a_row_is_as_large_as_what_moves_of_it(optimizer: OptimizerName, with_state: int, wide: bool, dim: int) -> None:
    rows = RowConfig(dim=dim, wide=wide, optimizer=optimizer, chunks=4)
    sizes = job_with(rows).row_sizes()
    assert sizes is not None
    head_state = {"sgd": 0, "rowwise_adagrad": 1 + wide, "adagrad": int(wide)}[optimizer]
    utilities_and_mask = 4 + 1
    for mask in range(16):
        columns = wide + utilities_and_mask + head_state + mask.bit_count() * dim // 4 * with_state
        assert sizes[mask] == pytest.approx(columns / rows.shape().total)
    assert (sizes.size, sizes[-1]) == (16, 1.0)


def test_dropped_columns_do_not_move() -> None:
    rows = RowConfig(dim=1200, chunks=2)
    sizes = job_with(rows).row_sizes(tuple(range(0, 1200, 3)))
    assert sizes is not None
    always = rows.shape().total - 2 * 1200
    assert (sizes * rows.shape().total).tolist() == pytest.approx([always, always + 400, always + 400, always + 800])


def test_rows_without_chunks_are_whole() -> None:
    assert job_with(RowConfig()).row_sizes() is None

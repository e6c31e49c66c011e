import numpy as np
import pytest

from infra.run.dense_part import STATE_COPIES, dense_part, heavy_warning
from infra.run.settings import load_settings
from ps.config import DenseOptimizerName, DenseRule
from ps.dense.range import DenseRange
from ps.protocol import BARE, WHOLE


def test_a_wide_dcn_is_heavy_and_the_warning_names_what_to_change() -> None:
    settings = load_settings(None, ["rows.dim=1024", "stream.schema_name=synthetic"])
    part = dense_part(settings)
    assert part.is_heavy
    assert part.worker_bytes == 4 * part.bytes == 16 * part.weights > 2 << 30
    told = heavy_warning(settings, part)
    for word in ("171M weights (685 MB, 2.74 GB in every worker)", "18.9 MB", "rows.dim than 1,024", "model.name"):
        assert word in told


def test_the_defaults_are_not_heavy() -> None:
    part = dense_part(load_settings())
    assert not part.is_heavy
    assert str(part) == "70,216 weights, 281 kB"


@pytest.mark.parametrize(("optimizer", "floats"), [("adam", 31), ("sgd", 10)])
def test_a_whole_range_on_a_shard_has_the_weights_and_so_many_copies(
    optimizer: DenseOptimizerName, floats: int
) -> None:
    whole = DenseRange(DenseRule(optimizer), np.float32)
    whole.put(np.zeros(floats, np.float32))
    assert whole.size(WHOLE) // whole.size(BARE) == 1 + STATE_COPIES[optimizer]

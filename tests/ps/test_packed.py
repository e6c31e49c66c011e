"""Rows that travel without their pruned chunks arrive as they were."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from infra.base.errors import WireError
from ps.config import RowConfig
from ps.packed import Packing, pack_reference
from ps.pruned_store import stored_reference

CASES = list(product([1, 2, 8], ["sgd", "adagrad", "rowwise_adagrad"], [True, False], ["float32", "float64"]))


def configured(chunks: int, optimizer: str, wide: bool, float_dtype: str) -> RowConfig:
    settings = {"dim": 8, "chunks": chunks, "optimizer": optimizer, "wide": wide, "float_dtype": float_dtype}
    return RowConfig.model_validate({**settings, "initial_accumulator": 0.25})


def drawn(config: RowConfig, rows: int = 40) -> NDArray[Any]:
    """Rows as a store has them, with all kinds of masks."""
    generator = np.random.default_rng(5)
    rows_KT = generator.normal(size=(rows, config.shape().total)).astype(config.float_dtype)
    rows_KT[:, -1] = generator.integers(0, 1 << config.chunks, rows)
    return stored_reference(config, rows_KT)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("with_state", [True, False])
def test_rows_arrive_as_they_were_and_pruned_columns_stay_behind(
    case: tuple[int, str, bool, str], with_state: bool
) -> None:
    config = configured(*case)
    packing, shape = Packing(config), config.shape()
    rows_KT = drawn(config)
    masks_K = packing.masks_of(rows_KT)
    rows_KX = np.ascontiguousarray(rows_KT if with_state else rows_KT[:, : shape.value])
    packed = packing.pack(rows_KX, masks_K)
    assert packed.size == packing.floats(len(rows_KX), masks_K, with_state)
    assert packing.unpack(packed, masks_K, with_state).tobytes() == rows_KX.tobytes()
    assert packed.tobytes() == pack_reference(rows_KX, masks_K, packing._travels(with_state)).tobytes()
    columns = shape.dim // shape.chunks * (2 if with_state and config.optimizer == "adagrad" else 1)
    live = int(np.bitwise_count(masks_K).sum())
    heads = len(rows_KX) * (rows_KX.shape[1] - with_state - columns * shape.chunks)
    assert packed.size == heads + live * columns
    into = np.empty_like(packed)
    assert packing.pack(rows_KX, masks_K, into) is into
    assert into.tobytes() == packed.tobytes()


@pytest.mark.parametrize("with_state", [True, False])
@pytest.mark.parametrize(("chunks", "kept"), [(1, (1, 2, 7)), (2, (0, 3, 4, 6)), (8, tuple(range(8)))])
def test_dropped_columns_stay_behind(chunks: int, kept: tuple[int, ...], with_state: bool) -> None:
    config = configured(chunks, "adagrad", wide=True, float_dtype="float32")
    packing, shape = Packing(config, kept), config.shape()
    rows_KT = stored_reference(config, drawn(config), kept)
    masks_K = packing.masks_of(rows_KT)
    rows_KX = np.ascontiguousarray(rows_KT if with_state else rows_KT[:, : shape.value])
    packed = packing.pack(rows_KX, masks_K)
    assert packing.unpack(packed, masks_K, with_state).tobytes() == rows_KX.tobytes()
    saved = int(np.bitwise_count(masks_K).sum()) * (shape.dim - len(kept)) // chunks * (1 + with_state)
    assert packed.size == Packing(config).floats(len(rows_KX), masks_K, with_state) - saved
    assert packing.widths is not None
    assert packing.widths.values_by_chunk == len(kept) // chunks


def test_whole_rows_travel_as_they_are_without_a_copy() -> None:
    config = RowConfig(dim=4)
    packing, rows_KT = Packing(config), np.ones((3, config.shape().total), np.float32)
    masks_K = packing.masks_of(rows_KT)
    assert masks_K.size == 0
    packed = packing.pack(rows_KT, masks_K)
    assert packed.base is rows_KT
    assert packed.size == packing.floats(3, masks_K, True)
    assert packing.unpack(packed, masks_K, True).tobytes() == rows_KT.tobytes()


@pytest.mark.parametrize(("chunks", "masks"), [(2, [1, 4]), (2, [1]), (2, []), (1, [2, 0]), (0, [1, 1])])
def test_masks_that_rows_cannot_have_are_refused(chunks: int, masks: list[int]) -> None:
    packing = Packing(RowConfig.model_validate({"dim": 4, "chunks": chunks}))
    with pytest.raises(WireError, match=r"2 rows came with .* masks"):
        packing.floats(2, np.array(masks, np.uint8), True)

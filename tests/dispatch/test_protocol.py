"""An order takes few bytes, and arrives as it was sent."""

from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dispatch.protocol import FROM_DISPATCHER, Order, OrderArrays
from infra.base.wire import Codec
from ps.phases import TRAIN
from tests.sockets import entries_of

CODEC = Codec(*FROM_DISPATCHER)
ORDER = Order(run="r", generation=1, step=1, phase=TRAIN, samples=2, batch=4, alone=1)
LARGEST = st.sampled_from([0, 255, 256, 65_535, 65_536, (1 << 31) - 1])
LARGEST_ROW = st.one_of(LARGEST, st.sampled_from([(1 << 32) - 1, 1 << 32, (1 << 62) - 1]))


def sent(arrays: OrderArrays) -> list[bytes]:
    return [bytes(frame) for frame in CODEC.encode(ORDER, arrays)]


def bytes_of(field: str, arrays: OrderArrays) -> int:
    """Bytes that one array of an order takes."""
    _, nbytes = entries_of(sent(arrays), OrderArrays)[OrderArrays._fields.index(field)]
    return nbytes


def up_to(largest: int, dtype: Any) -> NDArray[Any]:
    return np.array([0, largest, 1], dtype)


@given(st.lists(LARGEST_ROW, min_size=4, max_size=4), st.lists(LARGEST, min_size=7, max_size=7), st.floats(width=32))
def test_any_order_arrives_as_it_was_sent(rows: list[int], slots: list[int], label: float) -> None:
    pairs = [(up_to(row, np.int64), up_to(slot, np.int32)) for row, slot in zip(rows, slots, strict=False)]
    used, positions, columns = (up_to(largest, np.int32) for largest in slots[4:])
    floats = np.array([0, 1, label], np.float32)
    arrays = OrderArrays._make(
        [*chain.from_iterable(pairs), used, positions, floats, floats, columns, floats, floats, floats]
    )
    header, received = CODEC.decode(sent(arrays))
    assert header == ORDER
    assert [array.dtype for array in received] == [array.dtype for array in arrays]
    assert [array.tobytes() for array in received] == [array.tobytes() for array in arrays]


@pytest.mark.parametrize(
    ("field", "largest", "itemsize"),
    [
        ("positions", 255, 1),
        ("positions", 256, 2),
        ("positions", 65_536, 4),
        ("used_slots", 0, 2),
        ("used_slots", 65_535, 2),
        ("used_slots", 65_536, 4),
        ("full_rows", (1 << 32) - 1, 4),
        ("full_rows", 1 << 32, 8),
    ],
)
def test_the_largest_number_of_an_array_decides_how_many_bytes_each_takes(
    field: str, largest: int, itemsize: int
) -> None:
    array = up_to(largest, getattr(OrderArrays(), field).dtype)
    assert bytes_of(field, OrderArrays(**{field: array})) == itemsize * array.size


def test_a_thousand_labels_take_126_bytes() -> None:
    labels = np.arange(1000, dtype=np.float32) % 2
    assert bytes_of("labels", OrderArrays(labels=labels)) == 126
    assert bytes_of("labels", OrderArrays(labels=np.full(1000, 0.5, np.float32))) == 4000

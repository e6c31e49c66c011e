"""Batches that cross shared memory are those that were written, for as long as anyone has a part of them."""

from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingest.batches.batch import Batch
from ingest.batches.slots import Slots, WrittenBatch, read_batch, slot_bytes
from ingest.letters.letter import DeadLetter
from ingest.schema import load_schema
from ingest.streams.position import Position, Range
from tests.ingest.batches.loading import load
from tests.ingest.topics import SYNTHETIC, events, write_json

SKIPPED = Range(1, Position(3), Position(9, 2))
LETTER = DeadLetter(0, 4, 1, "label: 7, expected 0 or 1", b"\x00\xff", size=99)


def a_batch(folder: Path, count: int = 50) -> Batch:
    write_json(folder, events(count))
    (batch,) = load(folder, count)
    return batch


def moved(batch: Batch) -> Batch:
    written = WrittenBatch(batch)
    memory = np.empty(written.extent.all, np.uint8)
    written.write(memory)
    return read_batch(memory, written.extent)


def assert_equal(one: Batch, other: Batch) -> None:
    assert one.samples.equals(other.samples)
    for name in ("present_S", "arrived_B"):
        assert_same(getattr(one, name), getattr(other, name))
    for mine, others in zip(one.keys, other.keys, strict=True):
        assert_same(mine, others)
    for name in ("ranges", "dead_letters", "examples", "skipped", "skipped_events", "omitted"):
        assert getattr(one, name) == getattr(other, name), name


def assert_same(mine: Any, others: Any) -> None:
    assert (mine.dtype, mine.shape, mine.tobytes()) == (others.dtype, others.shape, others.tobytes())


def test_everything_of_a_batch_is_moved(tmp_path: Path) -> None:
    batch = a_batch(tmp_path)
    ones_B = np.ones(50, np.float32)
    samples = replace(
        batch.samples, weights_B=2 * ones_B, shares_BP=np.ones((50, 3), np.float32), more_labels_BL=ones_B[:, None]
    )
    full = replace(
        batch,
        samples=samples,
        dead_letters=(LETTER,),
        skipped=(SKIPPED,),
        skipped_events=7,
        omitted=3,
        examples=(b"x",),
    )
    for each in (batch, full):
        assert_equal(moved(each), each)


def test_columns_that_are_parts_of_records_are_moved(tmp_path: Path) -> None:
    batch = a_batch(tmp_path)
    wide_BF = np.zeros((50, 2 * batch.samples.keys_BF.shape[1]), np.uint64)
    wide_BF[:, ::2] = batch.samples.keys_BF
    assert_equal(moved(replace(batch, samples=replace(batch.samples, keys_BF=wide_BF[:, ::2]))), batch)


def test_a_batch_without_samples_is_moved(tmp_path: Path) -> None:
    batch = a_batch(tmp_path)
    empty = replace(
        batch,
        samples=batch.samples.slice(0, 0),
        keys=type(batch.keys)(batch.keys.local_BF[:0], batch.keys.keys_U[:0]),
        arrived_B=batch.arrived_B[:0],
        dead_letters=(LETTER,),
    )
    assert_equal(moved(empty), empty)


def test_moved_arrays_can_be_written_and_are_aligned(tmp_path: Path) -> None:
    batch = moved(a_batch(tmp_path))
    for array in (*batch.keys, batch.present_S, batch.arrived_B, *batch.samples.columns):
        assert array is None or (array.flags.writeable and array.flags.aligned and array.flags.c_contiguous)


def test_a_slot_returns_with_the_last_array_in_it(tmp_path: Path) -> None:
    batch = a_batch(tmp_path)
    written, slots, returned = WrittenBatch(batch), Slots(3, 1 << 20), deque[int]()
    written.write(slots.slot(2))
    read = read_batch(slots.lend(2, returned), written.extent)
    kept = read.samples.slice(3, 5).keys_BF.reshape(-1)
    del read
    assert not returned
    assert kept.tolist() == batch.samples.keys_BF[3:5].reshape(-1).tolist()
    del kept
    assert list(returned) == [2]


def test_slots_do_not_touch() -> None:
    slots = Slots(3, 5000)
    for number in range(slots.count):
        slots.slot(number)[:] = number
    assert [set(slots.slot(number).tolist()) for number in range(3)] == [{0}, {1}, {2}]
    assert slots.nbytes >= 5000


@pytest.mark.parametrize("schema", [SYNTHETIC, load_schema("criteo")], ids=lambda schema: str(schema.name))
def test_a_slot_has_room_for_a_batch_of_different_keys(tmp_path: Path, schema: Any) -> None:
    batch = a_batch(tmp_path, 16)
    keys_BF = np.arange(16 * schema.fields, dtype=np.uint64).reshape(16, -1)
    samples = replace(batch.samples, keys_BF=keys_BF, dense_BN=np.zeros((16, schema.dense), np.float32))
    large = replace(batch, samples=samples, keys=type(batch.keys)(keys_BF.astype(np.int32), keys_BF.reshape(-1)))
    assert WrittenBatch(large).extent.all <= slot_bytes(schema, 16)

"""Checkpoints of driven shards against a plain model: whatever happens, each is the state after its round."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.base.errors import StorageError
from infra.base.storage import Storage
from infra.base.wire import Codec
from ps.bins import BINS
from ps.checkpoints import gather, merge, taker
from ps.checkpoints.files import new_name
from ps.checkpoints.manifest import manifest_numbers, read_manifest
from ps.checkpoints.restore import ModelSettings
from ps.dense import range as dense_range
from ps.errors import OutOfOrder
from ps.phases import FLUSH
from ps.protocol import FROM_SHARD, GO_ON, Announce, CheckpointFailed, CheckpointSaved, FilePart, Opened, Pruned
from tests.disks import fill, small_disk
from tests.infra.base.test_storage import Killed, breaking_off
from tests.ps.checkpoints.driving import IN_CHUNKS, MODEL, Driven, failing_storage

SMALL_SLICE = 64
"""bytes: two rows"""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is done in portions is done in small ones."""
    monkeypatch.setattr(gather, "SLICE_BYTES", SMALL_SLICE)
    monkeypatch.setattr(merge, "BLOCK_BYTES", 200)
    monkeypatch.setattr(dense_range, "LEAST_PIECE_BYTES", 8)


rows = st.lists(st.integers(0, 40), max_size=8)
bins = st.lists(st.sampled_from([0, 1, 1590, 1600, 1610, 1616, BINS]), min_size=2, max_size=2)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("train"), st.integers(0, 6), rows, rows, st.booleans()),
        st.tuples(st.just("train"), st.integers(0, 6), rows, rows, st.booleans()),
        st.tuples(st.just("flush")),
        st.tuples(st.just("deliver"), st.integers(1, 9)),
        st.tuples(st.just("go_on"), st.integers(1, 6)),
        st.tuples(st.just("commit"), st.booleans()),
        st.tuples(st.just("meanwhile"), st.integers(0, 4), st.integers(0, 3), rows, rows, st.booleans()),
        st.tuples(st.just("meanwhile"), st.integers(0, 4), st.integers(0, 3), rows, rows, st.booleans()),
        st.tuples(st.just("settle")),
        st.tuples(st.just("prune"), bins, bins, st.sampled_from([0, 0, 1, 3])),
        st.tuples(st.just("restore"), st.integers(0, 99), st.integers(1, 3), st.booleans()),
    ),
    min_size=4,
    max_size=40,
)


def act(driven: Driven, storage: Any, action: Any) -> None:
    match action:
        case ("train", new, changed, kept, by_gradient):
            driven.train(new, changed, kept, by_gradient)
        case ("flush",):
            if driven.phase < 250:
                driven.flush()
        case ("meanwhile", slices, *step) if driven.taken:
            driven.deliver(len(driven.pending))
            driven.go_on(slices)
            driven.train(*step)
            driven.deliver(len(driven.pending))
        case ("deliver", count):
            driven.deliver(count)
        case ("go_on", times):
            driven.go_on(times)
        case ("commit", fails) if driven.taken:
            storage.fails = len(driven.shards) * fails
            driven.finish(next(iter(driven.taken)))
            storage.fails = 0
            driven.commit(next(iter(driven.taken)))
        case ("settle",):
            driven.settle()
        case ("prune", evict_below, bring_from, halvings) if driven.settings.rows.chunks:
            for checkpoint in driven.taken:
                driven.finish(checkpoint)
            driven.deliver(len(driven.pending))
            answers = driven.prune(evict_below, bring_from, halvings)
            assert all(isinstance(answer, Pruned) for answer in answers), answers
            driven.check()
        case ("restore", which, shards, is_lost):
            checkpoint = sorted(driven.committed)[which % len(driven.committed)]
            if is_lost or shards != len(driven.shards):
                driven.start(shards)
            assert all(isinstance(answer, Opened) for answer in driven.open(checkpoint))
            driven.check()


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions, st.integers(1, 3), st.integers(0, 2), st.sampled_from([MODEL, IN_CHUNKS]))
def test_any_history_of_rounds_checkpoints_and_restores_gives_the_model(
    small: None, history: list[Any], shards: int, deltas: int, model: ModelSettings
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        storage = failing_storage(Path(folder))
        driven = Driven(storage, shards, deltas, model)
        try:
            for action in history:
                act(driven, storage, action)
            driven.flush(checkpoint=False)
            driven.check()
            for checkpoint in driven.committed:
                act(driven, storage, ("restore", sorted(driven.committed).index(checkpoint), 1 + checkpoint % 3, True))
        finally:
            driven.settle()
            driven.close()


@pytest.fixture
def driven(small: None, tmp_path: Path) -> Any:
    made = Driven(failing_storage(tmp_path), deltas=1)
    yield made
    made.settle()
    made.close()


@pytest.mark.parametrize("by_gradient", [False, True])
def test_rows_that_change_while_they_are_gathered_are_saved_as_they_were(driven: Driven, by_gradient: bool) -> None:
    driven.train(12, range(12))
    checkpoint = driven.flush()
    driven.deliver(99)
    driven.train(3, range(15), by_gradient=by_gradient)
    driven.deliver(99)
    copy = driven.shards[0].checkpoints._taking.copy  # type: ignore[union-attr]
    assert copy is not None
    assert not copy.is_complete
    assert driven.commit(checkpoint)
    driven.open(checkpoint)
    assert len(driven.model.rows) == 12
    driven.check()


def test_rows_created_before_the_flush_is_applied_are_not_of_the_checkpoint(driven: Driven) -> None:
    driven.train(3, range(3))
    checkpoint = driven.flush()
    driven.train(2, range(5))
    (saved,) = driven.finish(checkpoint)
    assert isinstance(saved, CheckpointSaved)
    assert saved.rows == 3


def test_second_checkpoint_holds_what_changed_since_the_first(driven: Driven) -> None:
    driven.train(30, range(30))
    driven.take()
    driven.train(1, [4, 7])
    (saved,) = driven.outcomes[driven.take()]
    assert isinstance(saved, CheckpointSaved)
    assert [part.rows for part in saved.parts] == [30, 3]


def test_what_a_failed_checkpoint_did_not_save_is_part_of_the_next(driven: Driven) -> None:
    driven.train(5, range(5))
    driven.take()
    driven.train(0, [1])
    driven.storage.fails = 1  # type: ignore[attr-defined]
    checkpoint = driven.flush()
    assert not driven.commit(checkpoint)
    (failed,) = driven.outcomes[checkpoint]
    assert isinstance(failed, CheckpointFailed)
    assert "no room" in failed.reason
    driven.train(0, [3])
    (saved,) = driven.outcomes[driven.take()]
    assert isinstance(saved, CheckpointSaved)
    assert saved.parts[-1].rows == 2
    driven.open(driven.checkpoint)
    driven.check()


def test_checkpoint_that_was_saved_and_never_committed_is_not_built_on(driven: Driven) -> None:
    driven.train(5, range(5))
    driven.finish(driven.flush())
    driven.taken.clear()
    driven.train(0, [3])
    (saved,) = driven.outcomes[driven.take()]
    assert isinstance(saved, CheckpointSaved)
    assert [part.rows for part in saved.parts] == [5]


# ── chunks that were pruned ───────────────────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def in_chunks(small: None, tmp_path: Path) -> Any:
    """A shard with 30 rows in chunks and a checkpoint of them; the chunks of new rows are worth nothing."""
    made = Driven(failing_storage(tmp_path), deltas=1, settings=IN_CHUNKS)
    made.train(30, range(20))
    made.take()
    yield made
    made.settle()
    made.close()


def rows_of_next(driven: Driven) -> int:
    """Rows of the file that the next checkpoint adds."""
    (saved,) = driven.outcomes[driven.take()]
    assert isinstance(saved, CheckpointSaved)
    return saved.parts[-1].rows


def test_pruned_rows_are_of_the_next_checkpoint_and_of_no_later_one(in_chunks: Driven) -> None:
    in_chunks.prune([1, 0], [BINS, BINS])
    assert rows_of_next(in_chunks) == 10
    in_chunks.train(0, [3])
    assert rows_of_next(in_chunks) == 1
    in_chunks.start(2)
    in_chunks.open(in_chunks.checkpoint)
    in_chunks.check()


def test_pruned_rows_that_a_failed_checkpoint_did_not_save_are_of_the_next(in_chunks: Driven) -> None:
    in_chunks.prune([1, 0], [BINS, BINS])
    in_chunks.storage.fails = 1  # type: ignore[attr-defined]
    assert not in_chunks.commit(in_chunks.flush())
    in_chunks.prune([BINS, 0], [BINS, BINS])
    assert rows_of_next(in_chunks) == 30
    in_chunks.open(in_chunks.checkpoint)
    in_chunks.check()


def test_rows_pruned_before_a_commitment_stay_for_the_checkpoint_after_it(in_chunks: Driven) -> None:
    in_chunks.train(0, [3])
    saved = in_chunks.flush()
    in_chunks.finish(saved)
    in_chunks.prune([1, 0], [BINS, BINS])
    assert in_chunks.commit(saved)
    assert rows_of_next(in_chunks) == 10


def test_halved_utilities_make_the_next_checkpoint_whole_and_later_ones_not(in_chunks: Driven) -> None:
    saved = in_chunks.flush()
    in_chunks.finish(saved)
    in_chunks.prune([0, 0], [BINS, BINS], halvings=2)
    assert in_chunks.commit(saved)
    assert rows_of_next(in_chunks) == 30
    in_chunks.train(0, [3])
    assert rows_of_next(in_chunks) == 1
    in_chunks.open(in_chunks.checkpoint)
    in_chunks.check()


def test_nothing_is_pruned_while_a_checkpoint_is_taken(in_chunks: Driven) -> None:
    checkpoint = in_chunks.flush()
    in_chunks.deliver(99)
    with pytest.raises(AssertionError, match="expected neither"):  # the driver accepts no refusal
        in_chunks.prune([1, 1], [BINS, BINS])
    in_chunks.finish(checkpoint)
    in_chunks.check()


def test_checkpoint_announced_while_another_is_under_way_is_refused(driven: Driven) -> None:
    driven.train(9, range(9))
    first, second = driven.flush(), driven.flush()
    driven.deliver(99)
    (failed,) = driven.outcomes[second]
    assert isinstance(failed, CheckpointFailed)
    assert "not over" in failed.reason
    assert driven.commit(first)


def test_new_generation_abandons_a_checkpoint_under_way_and_the_next_is_whole(driven: Driven) -> None:
    driven.train(9, range(9))
    checkpoint = driven.flush()
    driven.deliver(99)
    assert isinstance(driven.open(GO_ON)[0], Opened)
    driven.go_on(20)
    assert driven.outcomes[checkpoint] == []
    (saved,) = driven.outcomes[driven.take()]
    assert isinstance(saved, CheckpointSaved)
    assert saved.parts[-1].rows == 9


def test_long_chain_is_merged_and_the_next_checkpoint_uses_the_merged_file(driven: Driven) -> None:
    driven.train(20, range(20))
    for _ in range(6):
        driven.train(1, range(10))
        driven.take()
        driven.settle()
    (saved,) = driven.outcomes[driven.checkpoint]
    assert isinstance(saved, CheckpointSaved)
    assert len(saved.parts) <= 3
    assert any("/base-0-" in part.name for part in saved.parts)
    driven.start(1)
    driven.open(driven.checkpoint)
    driven.check()


def test_a_merged_file_that_no_checkpoint_names_goes_when_the_shard_ends(driven: Driven) -> None:
    driven.train(20, range(20))
    while not driven.shards[0].checkpoints._merging:
        driven.train(1, range(10))
        driven.take()
    driven.settle()
    storage = driven.storage
    manifests = [read_manifest(storage, number) for number in manifest_numbers(storage)]
    named = {file.name for manifest in manifests for shard in manifest.shards for file in shard.files}
    (merged,) = {name for name in storage.names() if "/" in name} - named
    assert "/base-0-" in merged
    driven.close()
    assert {name for name in storage.names() if "/" in name} == named


def test_failed_merge_costs_nothing_but_a_longer_chain(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[str] = []

    def merge_nothing(*_: Any) -> Any:
        failed.append("merge")
        raise StorageError("no room")

    monkeypatch.setattr(taker, "merge", merge_nothing)
    for _ in range(5):
        driven.train(4, range(10))
        driven.take()
        driven.settle()
    (saved,) = driven.outcomes[driven.checkpoint]
    assert isinstance(saved, CheckpointSaved)
    assert len(saved.parts) == 5
    assert failed
    driven.open(driven.checkpoint)
    driven.check()


def test_damaged_file_that_a_merge_finds_is_not_built_on(driven: Driven, tmp_path: Path) -> None:
    driven.train(20, range(20))
    driven.take()
    driven.train(0, range(10))
    damaged = next(tmp_path.glob("00000001/shard-0-*"))
    flip(damaged, -1)
    driven.take()
    driven.train(0, range(15))
    driven.take()
    driven.settle()
    (saved,) = driven.outcomes[driven.take()]
    assert isinstance(saved, CheckpointSaved)
    assert [part.rows for part in saved.parts] == [20], "begins anew from memory"
    driven.start(1)
    driven.open(driven.checkpoint)
    driven.check()


def test_bytes_written_stay_proportional_to_what_changed(small: None, tmp_path: Path) -> None:
    driven = Driven(Storage.at(tmp_path), deltas=4)
    driven.train(2000, range(2000))
    driven.take()
    before = written(tmp_path)
    for step in range(40):
        driven.train(0, range(step * 10, step * 10 + 10))
        driven.take()
        driven.settle()
    changed = 40 * 10 * 100
    assert written(tmp_path) - before < 10 * changed + 41 * 2000
    driven.close()


def flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def written(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*/*"))


def test_full_disk_fails_the_checkpoint_and_training_goes_on(small: None, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 512) as disk:
        driven = Driven(Storage.at(disk / "checkpoints"))
        driven.train(20, range(20))
        first = driven.take()
        driven.train(3000, range(3000))
        filling = fill(disk)
        checkpoint = driven.flush()
        assert not driven.commit(checkpoint)
        (failed,) = driven.outcomes[checkpoint]
        assert isinstance(failed, CheckpointFailed)
        assert "No space left" in failed.reason
        driven.train(0, range(9))
        filling.unlink()
        assert manifest_numbers(driven.storage) == [first]
        last = driven.take()
        driven.start(2)
        driven.open(last)
        driven.check()
        driven.close()


@pytest.mark.parametrize(("phase", "has_storage"), [(FLUSH - 1, True), (FLUSH, False)])
def test_checkpoint_that_cannot_be_taken_is_refused_at_its_announcement(
    tmp_path: Path, phase: int, has_storage: bool
) -> None:
    made = taker.CheckpointTaker(Storage.at(tmp_path) if has_storage else None)
    with pytest.raises(OutOfOrder, match="checkpoint 1 was announced"):
        made.check(Announce(run="r", generation=1, step=1, phase=phase, pushers=[], checkpoint=1))


def test_checkpoint_committed_that_was_not_saved_is_refused_and_an_old_one_ignored(driven: Driven) -> None:
    driven.train(2, range(2))
    checkpoint = driven.take()
    driven.shards[0].checkpoints.commit(checkpoint)
    with pytest.raises(OutOfOrder, match="was committed"):
        driven.shards[0].checkpoints.commit(checkpoint + 1)


def test_changed_rows_are_those_of_the_reference() -> None:
    store = MODEL.empty_store()
    store.create(np.arange(50), np.arange(50, dtype=np.uint64))
    steps = np.random.default_rng(2).integers(-1, 9, 50)
    store.stamp(np.arange(50), steps)
    for since, known, end in ((-1, 0, 50), (-1, 50, 50), (4, 30, 45), (8, 50, 50), (8, 9, 50)):
        copy = gather.RowCopy(store, since, known, end)
        assert copy._numbers_K.tolist() == gather.changed_reference(steps.tolist(), since, known, end)


def test_process_killed_at_any_file_operation_finds_the_old_checkpoint_or_the_new_one(
    small: None, tmp_path: Path
) -> None:
    found = set()
    for at in range(60):
        driven = Driven(Storage.at(tmp_path / str(at)))
        driven.train(6, range(6))
        driven.take()
        driven.train(2, range(3))
        driven.train(1, range(2))
        checkpoint = driven.flush()
        driven.deliver(99)
        with pytest.MonkeyPatch.context() as patch:
            begun = breaking_off(patch, at)
            try:
                is_over = driven.commit(checkpoint)
            except Killed:
                is_over = False
            driven.close()
        newest = manifest_numbers(driven.storage)[-1]
        driven.committed.setdefault(checkpoint, (driven.step, driven.model))
        driven.start(2)
        assert all(isinstance(answer, Opened) for answer in driven.open(newest))
        driven.check()
        driven.close()
        found.add(newest)
        if is_over:
            break
    assert found == {1, 2}
    assert len(begun) == at > 9, "the file, its folder, the manifest"


def test_longest_chain_fits_into_a_message() -> None:
    part = FilePart(new_name(123_456_789, "merged", 127), 1 << 45, "f" * 32, 1 << 40)
    saved = CheckpointSaved(
        run="r" * 200, generation=1, step=1, checkpoint=1, parts=[part] * (taker.LONGEST_CHAIN + 1), rows=1 << 40
    )
    codec = Codec(*FROM_SHARD)
    assert codec.decode([bytes(frame) for frame in codec.encode(saved)])[0] == saved


def test_chain_that_is_too_long_begins_anew(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taker, "LONGEST_CHAIN", 2)
    monkeypatch.setattr(taker, "first_to_merge", lambda chain, deltas: None)
    for _ in range(3):
        driven.train(3, [0])
        driven.take()
    (saved,) = driven.outcomes[driven.checkpoint]
    assert isinstance(saved, CheckpointSaved)
    assert [part.rows for part in saved.parts] == [9]

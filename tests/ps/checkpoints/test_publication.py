import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import zmq

from infra.base.storage import Storage
from infra.base.wire import guarded, load_curve, write_curve
from ps.checkpoints import publication
from ps.checkpoints.files import content_of, read_columns, read_index, verify, write_columns
from ps.checkpoints.gather import NonFinite, RowCopy
from ps.checkpoints.manifest import read_manifest
from ps.checkpoints.publication import DeliveredFiles, Deliveries, FilePublisher
from ps.errors import CheckpointDamaged
from ps.protocol import CheckpointSaved
from tests.ps.checkpoints.driving import MODEL, WIDTH, Driven
from tests.ps.checkpoints.test_files import columns

ANY = "tcp://127.0.0.1:*"


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.001)


def subscribed(deliveries: Deliveries, *publishers: FilePublisher) -> None:
    """Returns once files of these publishers arrive."""
    deliveries.subscribe(publisher.endpoint for publisher in publishers)
    for number, publisher in enumerate(publishers):

        def arrives(name: str = f"first-{number}", publisher: FilePublisher = publisher) -> bool:
            publisher.publish(name, [b"x"])
            return name in deliveries.names

        until(arrives)
    for name in deliveries.names:
        deliveries.take_file(name)


@pytest.fixture
def publisher() -> Iterator[FilePublisher]:
    with zmq.Context() as context, closing(FilePublisher(context, ANY, None)) as made:
        yield made


def test_file_arrives_as_it_is_stored_and_is_read_in_its_place(tmp_path: Path, publisher: FilePublisher) -> None:
    storage, held = Storage.at(tmp_path), columns(1, 4, 9, dense=5)
    part, other = (write_columns(storage, f"00000001/{name}", held) for name in "ab")
    with closing(Deliveries()) as deliveries:
        subscribed(deliveries, publisher)
        publisher.publish(part.name, content_of(held))
        until(lambda: part.name in deliveries.names)
        files = DeliveredFiles(storage, deliveries)
        assert files.collect([part, other]) == 1
    storage.delete(part.name)
    for each in (part, part, other):
        found = read_columns(files, each)
        assert all(np.array_equal(a, b) for a, b in zip(found.arrays.values(), held.arrays.values(), strict=True))
        verify(files, each)
        assert all(np.array_equal(a, b) for a, b in zip(read_index(files, each), held[:3], strict=True))
        assert files.size(each.name) == each.nbytes
    assert files.collect([]) == 0
    with pytest.raises(CheckpointDamaged, match="missing"):
        read_columns(files, part)


@pytest.mark.parametrize("wrong", [b"pickled", None, b""])
def test_file_that_was_damaged_on_its_way_is_read_from_storage(
    tmp_path: Path, publisher: FilePublisher, wrong: bytes | None
) -> None:
    storage, held = Storage.at(tmp_path), columns(1, 2)
    part = write_columns(storage, "00000001/a", held)
    content = bytes(storage.read(part.name))
    with closing(Deliveries()) as deliveries:
        files = DeliveredFiles(storage, deliveries)
        assert files.collect([part]) == 0
        subscribed(deliveries, publisher)
        publisher.publish(part.name, [content[:-1] + b"\xff" if wrong is None else wrong])
        until(lambda: part.name in deliveries.names)
        assert files.collect([part]) == 0
        assert read_columns(files, part).numbers_K.tolist() == [1, 2]


def test_memory_of_deliveries_is_bounded_and_the_newest_files_are_kept(publisher: FilePublisher) -> None:
    with closing(Deliveries(most_bytes=100)) as deliveries:
        subscribed(deliveries, publisher)
        for number in range(6):
            publisher.publish(str(number), [b"x" * 40])
            until(lambda name=str(number): name in deliveries.names)  # type: ignore[misc]
        assert deliveries.names == ["4", "5"]
        assert deliveries.take_file("5") == b"x" * 40
        assert deliveries.take_file("5") is None
        assert deliveries._kept_bytes == 40


def test_publisher_never_waits_for_a_subscriber_that_takes_nothing(publisher: FilePublisher) -> None:
    with closing(Deliveries()) as deliveries:
        subscribed(deliveries, publisher)
        for number in range(500):
            publisher.publish(str(number), [bytes(1 << 20)])
        assert len(deliveries.names) < 500


def test_large_file_is_left_to_storage(publisher: FilePublisher, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Deliveries()) as deliveries:
        subscribed(deliveries, publisher)
        monkeypatch.setattr(publication, "MOST_FILE_BYTES", 10)
        publisher.publish("large", [b"x" * 6, b"y" * 5])
        publisher.publish("small", [b"x" * 6])
        until(lambda: "small" in deliveries.names)
        assert "large" not in deliveries.names


def test_deliveries_follow_shards_to_other_endpoints() -> None:
    with zmq.Context() as context, closing(Deliveries()) as deliveries:
        with closing(FilePublisher(context, ANY, None)) as before, closing(FilePublisher(context, ANY, None)) as other:
            subscribed(deliveries, before, other)
        with closing(FilePublisher(context, ANY, None)) as after:
            subscribed(deliveries, after)
            assert list(deliveries._sockets) == [after.endpoint]


def test_subscriber_with_strange_keys_gets_nothing(tmp_path: Path) -> None:
    for folder in ("keys", "others"):
        write_curve(tmp_path / folder, ["server"])
    server, stranger = load_curve(tmp_path / "keys", "server"), load_curve(tmp_path / "others", "server")
    with (
        zmq.Context() as context,
        guarded(context, server),
        closing(FilePublisher(context, ANY, server)) as publisher,
        closing(Deliveries(server)) as known,
        closing(Deliveries(stranger)) as unknown,
    ):
        unknown.subscribe([publisher.endpoint])
        subscribed(known, publisher)
        assert unknown.names == []


def test_shard_publishes_each_file_of_a_checkpoint_under_its_name_before_the_checkpoint_exists(
    tmp_path: Path, publisher: FilePublisher
) -> None:
    driven = Driven(Storage.at(tmp_path))
    driven.shards[0].checkpoints.publisher = publisher
    with closing(Deliveries()) as deliveries:
        subscribed(deliveries, publisher)
        for changed in (range(6), range(2)):
            driven.train(3, changed)
            checkpoint = driven.flush()
            driven.finish(checkpoint)
            saved = driven.outcomes[checkpoint][0]
            assert isinstance(saved, CheckpointSaved)
            until(lambda name=saved.parts[-1].name: name in deliveries.names)  # type: ignore[misc]
            assert driven.commit(checkpoint)
            found = read_manifest(driven.storage, checkpoint).shards[0].files[-1]
            assert deliveries.take_file(found.name) == bytes(driven.storage.read(found.name))
    driven.close()


def broken(driven: Driven) -> int:
    """What the shard says of the next checkpoint, committed; checked against all rows of its store."""
    checkpoint = driven.take()
    saved = driven.outcomes[checkpoint][0]
    assert isinstance(saved, CheckpointSaved)
    store = driven.shards[0].store
    values = np.empty((len(store), store.shape.value), np.float32)
    store.gather(np.arange(len(store)), values)
    assert saved.non_finite == np.count_nonzero(~np.isfinite(values))
    return saved.non_finite


def test_values_that_are_not_finite_are_counted_until_their_rows_are_mended(tmp_path: Path) -> None:
    driven = Driven(Storage.at(tmp_path))
    driven.train(6, range(6))
    assert broken(driven) == 0
    store, rows = driven.shards[0].store, np.zeros((3, WIDTH), np.float32)
    rows[0, 0], rows[1, 1:3], rows[2, store.shape.value :] = np.nan, np.inf, np.nan  # the last is optimizer state
    driven.train(0, range(5))
    driven.deliver(99)
    store.write(np.array([2, 4, 1]), rows)
    assert broken(driven) == 3
    driven.train(1, [0])
    assert broken(driven) == 3
    driven.train(0, [4])  # its owner brings what it should be
    assert broken(driven) == 1
    driven.start(1)
    driven.open(driven.checkpoint)
    driven.train(0, [0])
    assert broken(driven) == 1
    driven.train(0, [2])
    assert broken(driven) == 0
    driven.close()


def test_row_about_to_change_is_counted_as_it_was() -> None:
    store = MODEL.empty_store()
    store.create(np.arange(5), np.arange(5, dtype=np.uint64))
    rows = np.zeros((5, WIDTH), np.float32)
    rows[3, :2] = np.inf
    store.write(np.arange(5), rows)
    copy = RowCopy(store, -1, 0, 5)
    copy.keep(np.array([3]))
    store.write(np.arange(5), np.zeros_like(rows))
    copy.go_on()
    before = NonFinite(np.array([1, 9]), np.array([4, 2], np.int32))
    assert [array.tolist() for array in copy.non_finite(before)] == [[9, 3], [2, 2]]

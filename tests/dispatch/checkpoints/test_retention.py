from pathlib import Path
from time import time

import pytest
from msgspec.structs import replace

from dispatch.checkpoints.retention import (
    Retained,
    discard_after,
    drop_old,
    files_of,
    highest_number,
    pin,
    pinned_numbers,
    sweep,
    unpin,
)
from infra.base.storage import Storage
from ps.checkpoints.choice import Choice, write_choice
from ps.checkpoints.manifest import ShardPart, Verdict, manifest_numbers, read_manifest, write_manifest
from ps.checkpoints.served import SILENT_SECONDS, ServedRecord, write_served
from ps.errors import CheckpointDamaged
from ps.protocol import FilePart
from tests.dispatch.checkpoints.checkpoints import manifest_of


def file(storage: Storage, name: str) -> FilePart:
    storage.write(name, [b"x"])
    return FilePart(name, 1, "0" * 32)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """Checkpoints 1 to 5, each with a file of its own and the last two of those before; 3 has a new base."""
    found = Storage.at(tmp_path)
    chain: tuple[FilePart, ...] = ()
    for number in range(1, 6):
        name = f"{number:08d}/{'base' if number == 3 else 'shard'}-0-x.safetensors"
        chain = (*(() if number == 3 else chain), file(found, name))
        dispatcher = file(found, f"{number:08d}/dispatcher-x.safetensors")
        write_manifest(found, manifest_of(number, dispatcher, shards=(ShardPart(0, 0, chain),)))
    return found


def judge(storage: Storage, *held: int, is_publication: bool = False) -> None:
    """Writes the verdicts of all checkpoints anew."""
    for number in manifest_numbers(storage):
        verdict = Verdict(("logloss",) if number in held else ())
        manifest = replace(read_manifest(storage, number), verdict=verdict, is_publication=is_publication)
        write_manifest(storage, manifest)


def serve(storage: Storage, checkpoint: int, age_seconds: float = 0.0, server: str = "serve") -> None:
    write_served(storage, server, ServedRecord(checkpoint, 0, 5, at_seconds=time() - age_seconds))


def is_whole(storage: Storage) -> bool:
    """Whether every file that a manifest names is there."""
    names = set(storage.names())
    return all(files_of(read_manifest(storage, number)) <= names for number in manifest_numbers(storage))


def test_the_newest_checkpoints_stay_with_every_file_that_they_name(storage: Storage) -> None:
    assert drop_old(storage, 2) == Retained((4, 5), 4)
    assert manifest_numbers(storage) == [4, 5]
    assert is_whole(storage)
    left = [name for name in storage.names() if "/" in name]
    assert left == [
        "00000003/base-0-x.safetensors",
        *(f"0000000{n}/{kind}-x.safetensors" for n in (4, 5) for kind in ("dispatcher", "shard-0")),
    ]
    assert drop_old(storage, 2) == Retained((4, 5), 4)


def test_pinned_checkpoints_stay_and_do_not_count(storage: Storage) -> None:
    pin(storage, 2)
    assert drop_old(storage, 1) == Retained((2, 5), 5)
    assert is_whole(storage)
    assert "00000001/shard-0-x.safetensors" in storage.names()  # checkpoint 2 builds on it
    unpin(storage, 2)
    drop_old(storage, 1)
    assert manifest_numbers(storage) == [5]
    assert not [name for name in storage.names() if name.startswith(("00000001", "00000002"))]


def test_only_checkpoints_that_exist_are_pinned(storage: Storage) -> None:
    with pytest.raises(CheckpointDamaged, match="checkpoint 9 does not exist"):
        pin(storage, 9)
    assert pinned_numbers(storage) == set()


def test_files_that_no_manifest_names_yet_stay_while_the_run_goes_on(storage: Storage) -> None:
    fresh = [file(storage, f"{name}.safetensors").name for name in ("00000005/base-0-y", "00000006/shard-0-y")]
    drop_old(storage, 1)
    assert set(fresh) <= set(storage.names())


def test_a_sweep_removes_all_that_no_manifest_names_and_nothing_of_others(storage: Storage) -> None:
    whole = storage.names()
    lost = [
        "00000005/base-0-y.safetensors",
        "00000006.json.1.part",
        "00000006/shard-0-y.safetensors",
        "00000009.pinned",
    ]
    for name in (*lost, "README"):
        file(storage, name)
    assert highest_number(storage) == 9
    assert sweep(storage) == lost
    assert storage.names() == sorted([*whole, "README"])


def test_nothing_is_removed_while_a_manifest_that_stays_cannot_be_read(storage: Storage, tmp_path: Path) -> None:
    whole = storage.names()
    (tmp_path / "00000004.json").write_bytes(b"{}")
    file(storage, "00000002/lost.safetensors")
    assert drop_old(storage, 2).oldest == 4
    assert sweep(storage) == []
    assert storage.names() == sorted([*whole, "00000002/lost.safetensors"])


@pytest.mark.parametrize("after", range(12))
def test_a_crash_at_any_point_leaves_only_whole_checkpoints_and_a_sweep_the_rest(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    delete, left = Storage.delete, [after]

    def crashing(self: Storage, name: str) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        delete(self, name)

    with monkeypatch.context() as patched:
        patched.setattr(Storage, "delete", crashing)
        try:
            drop_old(storage, 1)
        except KeyboardInterrupt:
            assert is_whole(storage)
            assert 5 in manifest_numbers(storage)
    drop_old(storage, 1)
    sweep(storage)
    named = files_of(read_manifest(storage, 5))
    assert set(storage.names()) == {*named, "00000005.json"}
    assert (left[0] > 0) is (after > 10)


def test_checkpoints_of_void_steps_go_but_pinned_ones(storage: Storage) -> None:
    pin(storage, 5)
    discard_after(storage, 2)
    assert manifest_numbers(storage) == [1, 2, 5]
    assert is_whole(storage)


@pytest.mark.parametrize(
    ("served", "most", "kept", "oldest"),
    [
        ((), 2, (4, 5), 4),
        ((2, 3, 4, 5), 2, (1, 4, 5), 0),
        ((3, 4, 5), 2, (1, 2, 4, 5), 1),
        ((2, 4), 2, (3, 4, 5), 3),
        ((1, 2, 3), 1, (5,), 5),
        ((1, 2, 3, 4, 5), 3, (4, 5), 0),
    ],
)
def test_checkpoints_taken_only_to_be_served_do_not_count_and_the_newest_two_stay(
    storage: Storage, served: tuple[int, ...], most: int, kept: tuple[int, ...], oldest: int
) -> None:
    for number in served:
        write_manifest(storage, replace(read_manifest(storage, number), is_publication=True))
    assert drop_old(storage, most) == Retained(kept, oldest)
    assert tuple(manifest_numbers(storage)) == kept
    assert is_whole(storage)


@pytest.mark.parametrize(
    ("held", "most", "kept"),
    [
        ((3, 4, 5), 1, (2, 5)),  # a server that starts has a good one
        ((3, 4, 5), 2, (1, 2, 4, 5)),
        ((1, 2, 3, 4, 5), 1, (5,)),
        ((2, 3, 4), 2, (1, 4, 5)),
    ],
)
def test_as_many_good_checkpoints_stay_while_newer_ones_are_held_back(
    storage: Storage, held: tuple[int, ...], most: int, kept: tuple[int, ...]
) -> None:
    judge(storage, *held)
    assert drop_old(storage, most).numbers == kept
    assert is_whole(storage)


@pytest.mark.parametrize(
    ("held", "served", "kept"),
    [
        ((4, 5), 3, (2, 3, 4, 5)),  # what is served, and what a rollback goes back to
        ((), 2, (1, 2, 4, 5)),  # by a server that is behind
        ((3,), 3, (2, 3, 4, 5)),  # a snapshot that was released, and whose release is forgotten
        ((2, 3, 4, 5), 1, (1, 4, 5)),
    ],
)
def test_what_is_served_stays_with_the_good_snapshot_before(
    storage: Storage, held: tuple[int, ...], served: int, kept: tuple[int, ...]
) -> None:
    judge(storage, *held, is_publication=True)
    serve(storage, served)
    serve(storage, 9, server="serve-1")  # not there any more
    assert drop_old(storage, 3).numbers == kept
    assert drop_old(storage, 3).numbers == kept
    assert is_whole(storage)


def test_a_server_that_has_been_silent_for_a_day_keeps_nothing(storage: Storage) -> None:
    judge(storage, is_publication=True)
    serve(storage, 1, age_seconds=SILENT_SECONDS - 100)
    assert 1 in drop_old(storage, 1).numbers
    serve(storage, 1, age_seconds=SILENT_SECONDS + 100)
    assert drop_old(storage, 1).numbers == (4, 5)


def test_what_people_want_served_stays_and_nothing_goes_while_that_is_not_known(
    storage: Storage, tmp_path: Path
) -> None:
    judge(storage, 3, 4, 5)
    (tmp_path / "serving.json").write_bytes(b"nonsense")
    assert drop_old(storage, 1) == Retained((1, 2, 3, 4, 5), 5)
    write_choice(storage, Choice(pinned=1, released=(3,)))
    assert drop_old(storage, 1) == Retained((1, 2, 3, 5), 5)


def test_what_is_served_stays_though_its_steps_are_void(storage: Storage) -> None:
    serve(storage, 4)
    discard_after(storage, 2)
    assert manifest_numbers(storage) == [1, 2, 4]

"""Which checkpoint is gone back to when storage does not give some of them out."""

from pathlib import Path
from typing import cast

import pytest

from dispatch.checkpoints.search import CheckpointSearch
from dispatch.checkpoints.unreadable import MOST_TRIES
from dispatch.errors import CheckpointUnreadable, CheckpointUnusable, NoCheckpoint
from dispatch.journal.run import RunJournal
from infra.base.errors import StorageError
from infra.base.storage import Storage
from ps.checkpoints.manifest import manifest_name
from ps.protocol import EMPTY_MODEL
from tests.dispatch.checkpoints.checkpoints import take_checkpoint


class TrimmedJournal:
    """Stands in for a journal that has all checkpoints and does not reach back to the run's start."""

    def checkpoint_numbers(self) -> set[int]:
        return {1, 2, 3}

    def read_again(self, base: int) -> None:
        if base == EMPTY_MODEL:
            raise CheckpointUnusable("the first steps are gone")


@pytest.fixture
def search(tmp_path: Path) -> CheckpointSearch:
    storage = Storage.at(tmp_path)
    for number in (1, 2, 3):
        take_checkpoint(storage, number, (), 0)
    return CheckpointSearch(storage, cast(RunJournal, TrimmedJournal()), is_replay=False)


def refuse(monkeypatch: pytest.MonkeyPatch, *numbers: int, times: int = 1000) -> None:
    """The manifests of these checkpoints cannot be read so many times."""
    names, left, reading = {manifest_name(number) for number in numbers}, [times], Storage.read

    def read(storage: Storage, name: str) -> memoryview:
        if name in names and left[0]:
            left[0] -= 1
            raise StorageError(f"cannot use {storage.where(name)}: Input/output error")
        return reading(storage, name)

    monkeypatch.setattr(Storage, "read", read)


def found(search: CheckpointSearch) -> tuple[int | None, int]:
    """The number of the checkpoint that is found in the end, and how many tries it took."""
    for tries in range(100):
        try:
            usable = search.find()
            return (None if usable is None else usable.manifest.number), tries
        except CheckpointUnreadable as fault:
            search.put_off(fault)
    pytest.fail("no checkpoint was found")


def test_the_newest_is_found_and_one_that_is_damaged_is_passed_over(search: CheckpointSearch, tmp_path: Path) -> None:
    assert found(search) == (3, 0)
    (tmp_path / manifest_name(3)).write_bytes(b"{}")
    assert found(search) == (2, 0)
    assert search.damaged == {3}


def test_a_checkpoint_that_cannot_be_read_is_tried_again_and_is_not_damaged(
    search: CheckpointSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, 3)
    assert found(search) == (2, MOST_TRIES)
    assert search.damaged == set()


def test_without_any_other_checkpoint_the_search_goes_on_until_storage_is_back(
    search: CheckpointSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, 1, 2, 3, times=4 * MOST_TRIES)
    checkpoint, tries = found(search)
    assert (checkpoint in (1, 2, 3), tries > 3 * MOST_TRIES) == (True, True)


def test_without_a_checkpoint_that_is_whole_the_run_cannot_go_on(search: CheckpointSearch, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (tmp_path / manifest_name(number)).write_bytes(b"{}")
    with pytest.raises(NoCheckpoint, match="no checkpoint can be used, and the journal does not reach back"):
        search.find()

"""Which cut is gone back to when storage does not give some of them out."""

from pathlib import Path
from typing import cast

import pytest

from dispatch.cuts.search import CutSearch
from dispatch.cuts.unreadable import MOST_TRIES
from dispatch.errors import CutUnreadable, CutUnusable, NoCut
from dispatch.journal.run import RunJournal
from infra.base.errors import StorageError
from infra.base.storage import Storage
from ps.cuts.manifest import manifest_name
from ps.protocol import EMPTY_MODEL
from tests.dispatch.cuts.cuts import take_cut


class TrimmedJournal:
    """Stands in for a journal that has all cuts and does not reach back to the run's start."""

    def cut_numbers(self) -> set[int]:
        return {1, 2, 3}

    def read_again(self, base: int) -> None:
        if base == EMPTY_MODEL:
            raise CutUnusable("the first steps are gone")


@pytest.fixture
def search(tmp_path: Path) -> CutSearch:
    storage = Storage.at(tmp_path)
    for number in (1, 2, 3):
        take_cut(storage, number, (), 0)
    return CutSearch(storage, cast(RunJournal, TrimmedJournal()), is_replay=False)


def refuse(monkeypatch: pytest.MonkeyPatch, *numbers: int, times: int = 1000) -> None:
    """The manifests of these cuts cannot be read so many times."""
    names, left, reading = {manifest_name(number) for number in numbers}, [times], Storage.read

    def read(storage: Storage, name: str) -> memoryview:
        if name in names and left[0]:
            left[0] -= 1
            raise StorageError(f"cannot use {storage.where(name)}: Input/output error")
        return reading(storage, name)

    monkeypatch.setattr(Storage, "read", read)


def found(search: CutSearch) -> tuple[int | None, int]:
    """The number of the cut that is found in the end, and how many tries it took."""
    for tries in range(100):
        try:
            usable = search.find()
            return (None if usable is None else usable.manifest.number), tries
        except CutUnreadable as fault:
            search.put_off(fault)
    pytest.fail("no cut was found")


def test_the_newest_is_found_and_one_that_is_damaged_is_passed_over(search: CutSearch, tmp_path: Path) -> None:
    assert found(search) == (3, 0)
    (tmp_path / manifest_name(3)).write_bytes(b"{}")
    assert found(search) == (2, 0)
    assert search.damaged == {3}


def test_a_cut_that_cannot_be_read_is_tried_again_and_is_not_damaged(
    search: CutSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, 3)
    assert found(search) == (2, MOST_TRIES)
    assert search.damaged == set()


def test_without_any_other_cut_the_search_goes_on_until_storage_is_back(
    search: CutSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, 1, 2, 3, times=4 * MOST_TRIES)
    cut, tries = found(search)
    assert (cut in (1, 2, 3), tries > 3 * MOST_TRIES) == (True, True)


def test_without_a_cut_that_is_whole_the_run_cannot_go_on(search: CutSearch, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (tmp_path / manifest_name(number)).write_bytes(b"{}")
    with pytest.raises(NoCut, match="no cut can be used, and the journal does not reach back"):
        search.find()

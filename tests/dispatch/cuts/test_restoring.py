from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from dispatch.cuts.restoring import load_cut, load_newest
from infra.storage import Storage
from ps.errors import CutDamaged
from tests.dispatch.cuts.cuts import rows_file, take_cut

KEYS = np.arange(100, 107, dtype=np.uint64)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """Three cuts of 3, 5 and 7 rows."""
    found = Storage.at(tmp_path)
    for number, rows in ((1, 3), (2, 5), (3, 7)):
        take_cut(found, number, (rows_file(found, range(rows), KEYS, cut=number),), rows, step=rows)
    return found


def test_the_newest_cut_that_the_journal_knows_is_loaded(storage: Storage) -> None:
    loaded = load_newest(storage, [1, 2, 3, 4], "r")
    assert loaded is not None
    assert (loaded.manifest.number, loaded.state.decided.step) == (3, 7)
    assert loaded.index.keys.tolist() == KEYS.tolist()
    known = load_newest(storage, [1, 2], "r")
    assert known is not None
    assert (known.manifest.number, known.index.count) == (2, 5)
    assert load_newest(storage, [9], "r") is None


def test_damaged_cuts_are_passed_over_loudly(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "00000003.json").write_bytes(b"")
    next((tmp_path / "00000002").glob("dispatcher-*")).unlink()
    twice = KEYS // np.uint64(2)
    take_cut(storage, 4, (rows_file(storage, range(7), twice, cut=4),), 7)
    with capture_logs() as logs:
        loaded = load_newest(storage, [1, 2, 3, 4], "r")
    assert loaded is not None
    assert loaded.manifest.number == 1
    assert [(line["cut"], line["log_level"]) for line in logs] == [(number, "error") for number in (4, 3, 2)]


def test_cuts_of_other_runs_or_with_other_rows_are_refused(storage: Storage) -> None:
    with pytest.raises(CutDamaged, match="cut 1 is of run 'r'; expected 's'"):
        load_cut(storage, 1, "s")
    take_cut(storage, 4, (rows_file(storage, range(7), KEYS, cut=4),), 7)
    assert load_cut(storage, 4, "r").index.count == 7

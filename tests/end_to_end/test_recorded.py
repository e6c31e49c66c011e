"""What is computed stays what it was: see ``recorded``."""

from pathlib import Path

import msgspec
import pytest

from tests.end_to_end.recorded import FILE, RUNS, Record, probe_arithmetic, record

FOLLOW_LOGARITHMS = ("joint",)
"""its annealing draws noise through the machine's own logarithm, whose last bit may differ"""


@pytest.mark.parametrize("name", list(RUNS))
def test_a_run_computes_what_is_on_record(tmp_path: Path, name: str) -> None:
    recorded = msgspec.json.decode(FILE.read_bytes(), type=Record)
    is_same_machine = recorded.probe == probe_arithmetic()
    expected, actual = recorded.runs[name], record(tmp_path / "run", name)
    assert actual.manifests == expected.manifests
    assert actual.sums == pytest.approx(expected.sums, rel=1e-5)
    if is_same_machine or name not in FOLLOW_LOGARITHMS:
        assert (actual.assignments, actual.traffic) == (expected.assignments, expected.traffic)
    if is_same_machine:
        assert (actual.rows, actual.dense) == (expected.rows, expected.dense)

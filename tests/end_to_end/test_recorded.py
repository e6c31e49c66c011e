"""What is computed stays what it was: see ``recorded``."""

from pathlib import Path

import msgspec
import pytest

from tests.end_to_end.recorded import FILE, RUNS, Record, probe_arithmetic, record


@pytest.mark.parametrize("name", list(RUNS))
def test_a_run_computes_what_is_on_record(tmp_path: Path, name: str) -> None:
    recorded = msgspec.json.decode(FILE.read_bytes(), type=Record)
    expected, actual = recorded.runs[name], record(tmp_path / "run", name)
    assert actual.manifests == expected.manifests
    assert actual.assignments == expected.assignments
    assert actual.traffic == expected.traffic
    assert actual.sums == pytest.approx(expected.sums, rel=1e-5)
    if recorded.probe == probe_arithmetic():
        assert (actual.rows, actual.dense) == (expected.rows, expected.dense)

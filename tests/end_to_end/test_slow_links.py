"""Rows that are written back over a link that takes longer for them than anyone may be silent."""

import json
from pathlib import Path

import pytest

from ps.main import UNANSWERED_SECONDS
from tests.end_to_end.processes import run
from tests.infra.run.allowed import NEEDED, can_make_namespaces

GBIT = 0.0002
ONE_WORKER = ("--workers", "1", "--links", str(GBIT), "--network", "namespaces", "--policies", "round_robin")
SMALL = ("--batch", "16", "--steps", "4", "--warm-up", "1", "--dim", "16", "--format", "synthetic")


@pytest.mark.skipif(not can_make_namespaces(), reason=NEEDED)
def test_a_write_back_that_takes_long_is_waited_for_and_not_taken_for_a_loss(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    ended = run("bench", "train", *ONE_WORKER, *SMALL, "--json", output)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (only,) = json.loads(output.read_text())
    assert only["dense_bytes"][0] * 8 / (GBIT * 1e9) > 2 * UNANSWERED_SECONDS, "it was written back too soon"
    assert "replaying" not in ended.stderr, "the run went back to its beginning"

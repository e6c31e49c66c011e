"""Decisions that are divided among threads."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.end_to_end.processes import ROOT


@pytest.fixture(scope="module")
def decided() -> Any:
    """What a process with eight threads decided, alone and with two and with all of them."""
    command = [sys.executable, "-m", "tests.dispatch.placement.deciding", "1", "2", "99"]
    environment = {**os.environ, "NUMBA_NUM_THREADS": "8"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_decisions_are_the_same_for_any_number_of_threads(decided: Any) -> None:
    different = [name for name, digests in decided["digests"].items() if len(set(digests)) > 1]
    assert not different
    assert len({tuple(digests) for digests in decided["digests"].values()}) == len(decided["digests"])


def test_no_more_threads_are_used_than_there_are(decided: Any) -> None:
    assert decided["used"] == [1, 2, 8]


def test_threads_are_started_only_if_several_are_asked_for(decided: Any) -> None:
    alone, two, many = decided["threads"]
    assert alone < two <= many


def test_a_forked_process_decides_alone(decided: Any) -> None:
    assert decided["in a child"] == decided["digests"]["1 esd:1"][0]

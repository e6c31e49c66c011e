"""Vowpal Wabbit beside Freshet, on the same samples; the pass itself needs its package."""

import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.vowpal import check_vowpal, lines_of, run_vowpal
from infra.base.errors import ConfigError, MissingProgram
from infra.base.process import Stop
from ingest.samples import Samples
from tests.benchmarks.test_quality import made_up_criteo


def test_samples_become_lines_of_keys_and_numbers() -> None:
    samples = Samples(
        labels_B=np.array([1, 0], np.float32),
        dense_BN=np.array([[0.5, 0.0], [-0.0, 2.0]], np.float32),
        keys_BF=np.array([[255, 2**64 - 1], [1, 2]], np.uint64),
        times_B=np.zeros(2),
    )
    assert list(lines_of(samples)) == ["1 |c ff ffffffffffffffff |i 0:0.5", "-1 |c 1 2 |i 1:2"]


def test_without_the_package_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vowpalwabbit", None)
    with pytest.raises(MissingProgram, match="pip install vowpalwabbit"):
        check_vowpal("criteo", None)


def test_a_pass_learns_what_there_is_to_learn(tmp_path: Path) -> None:
    pytest.importorskip("vowpalwabbit", reason="the package vowpalwabbit is not installed")
    file = made_up_criteo(tmp_path / "clicks.tsv", 3000)
    result = run_vowpal(file, "criteo", None, 1400, Stop())
    assert (result.samples, result.second_half.samples) == (3000, 1400)
    assert result.second_half.auc is not None
    assert result.second_half.auc > 0.6
    with pytest.raises(ConfigError, match="does not take '--no-such-option'"):
        check_vowpal("criteo", "--no-such-option")

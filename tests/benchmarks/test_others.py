"""Vowpal Wabbit and River beside Freshet, on the same samples; the passes themselves need their packages."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.others import Other, run_other
from benchmarks.river import features_of, open_river
from benchmarks.vowpal import lines_of, open_vowpal
from infra.base.errors import ConfigError, MissingProgram
from infra.base.process import Stop
from ingest.samples import Samples
from tests.benchmarks.test_quality import made_up_criteo

SAMPLES = Samples(
    labels_B=np.array([1, 0], np.float32),
    dense_BN=np.array([[0.5, 0.0], [-0.0, 2.0]], np.float32),
    keys_BF=np.array([[255, 2**64 - 1], [1, 2]], np.uint64),
    times_B=np.zeros(2),
)


def test_samples_become_lines_of_keys_and_numbers() -> None:
    assert list(lines_of(SAMPLES)) == ["1 |c ff ffffffffffffffff |i 0:0.5", "-1 |c 1 2 |i 1:2"]


def test_samples_become_features_of_keys_and_numbers() -> None:
    first, second = features_of(SAMPLES)
    assert first == ({255: 1.0, 2**64 - 1: 1.0, "i0": 0.5}, True)
    assert second == ({1: 1.0, 2: 1.0, "i1": 2.0}, False)


def test_without_the_packages_the_errors_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vowpalwabbit", None)
    monkeypatch.setitem(sys.modules, "river", None)
    with pytest.raises(MissingProgram, match="pip install vowpalwabbit"):
        open_vowpal("criteo")
    with pytest.raises(MissingProgram, match="pip install river"):
        open_river()


@pytest.mark.parametrize(
    ("package", "opened"), [("vowpalwabbit", lambda: open_vowpal("criteo")), ("river", open_river)]
)
def test_a_pass_learns_what_there_is_to_learn(tmp_path: Path, package: str, opened: Callable[[], Other]) -> None:
    pytest.importorskip(package, reason=f"the package {package} is not installed")
    file = made_up_criteo(tmp_path / "clicks.tsv", 3000)
    result = run_other(opened(), file, "criteo", 1400, Stop())
    assert (result.samples, result.second_half.samples) == (3000, 1400)
    assert result.second_half.auc is not None
    assert result.second_half.auc > 0.6


def test_options_that_vowpal_wabbit_does_not_take_are_refused() -> None:
    pytest.importorskip("vowpalwabbit", reason="the package vowpalwabbit is not installed")
    with pytest.raises(ConfigError, match="does not take '--no-such-option'"):
        open_vowpal("criteo", "--no-such-option")

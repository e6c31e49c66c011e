"""The gate's benchmark does to samples what its cases say, and tells what became of snapshots."""

import numpy as np
import pytest

from benchmarks.serving.gate import CASES, GateLoad, JudgedSnapshot, faults, read_stream, result_of, run_gate, thinned
from infra.base.errors import ConfigError
from ingest.batches.counting import count_present
from ingest.schema import load_schema

SCHEMA = load_schema("synthetic")
LOAD = GateLoad("synthetic", None, samples=18_000, snapshot_samples=600, field="item")
SAMPLES = next(read_stream(LOAD, SCHEMA))
GOOD, HELD = JudgedSnapshot((), 0.3), JudgedSnapshot(("why",), 0.2)


def test_cases_change_labels_or_one_field_as_they_say() -> None:
    draw, rate = np.random.default_rng(0), float(SAMPLES.labels_B.mean())
    made = {name: fault(SAMPLES, 0.5, draw) for name, fault in faults(SCHEMA, "item").items()}
    rates = {name: float(samples.labels_B.mean()) for name, samples in made.items()}
    assert tuple(made) == CASES
    assert (rates["all zeros"], rates["all ones"]) == (0.0, 1.0)
    assert rates["inverted"] == pytest.approx(1 - rate)
    assert rates["random"] == pytest.approx(rate)
    assert float(thinned(SAMPLES, 0.1, draw).labels_B.mean()) == pytest.approx(0.1 * rate, rel=0.25)
    present_S = count_present(made["field gone"], SCHEMA)
    assert present_S[SCHEMA.sources.index("item")] == 0
    assert np.count_nonzero(present_S == 0) == 1


def test_an_unknown_field_and_an_unknown_case_are_refused() -> None:
    with pytest.raises(ConfigError, match="no field 'itm' in schema synthetic"):
        faults(SCHEMA, "itm")["field gone"](SAMPLES, 0.0, np.random.default_rng(0))
    with pytest.raises(ConfigError, match="no cases \\['zeroes'\\]"):
        run_gate(LOAD, ["zeroes"], lambda text: None)


def test_snapshots_are_counted_from_the_beginning_of_each_third() -> None:
    found = result_of("inverted", [GOOD, GOOD, GOOD, GOOD, HELD, GOOD, HELD, HELD, GOOD], 3)
    assert (found.false_holds, found.held_after, found.held, found.passed_after, found.back_after) == (0, 1, 1, 2, 2)
    assert (found.mean_before, found.least_mean, found.largest_mean, found.reason) == (0.3, 0.2, 0.3, "why")


def test_a_model_that_is_taught_that_nobody_clicks_is_held_back() -> None:
    (found,) = run_gate(LOAD, ["all zeros"], lambda text: None)
    assert (found.snapshots, found.false_holds, found.held) == (30, 0, 10)
    assert found.least_mean > 0.5 * found.mean_before

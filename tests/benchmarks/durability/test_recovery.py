"""Which faults the recovery benchmark causes. What they do to a run is shown in tests/end_to_end."""

import pytest

from benchmarks.durability.recovery import EXAMPLES, cases
from infra.base.errors import ConfigError
from infra.base.faults import ALLOWED, FAULT, SEAMS, read_faults


def test_every_seam_and_a_stop_of_every_kind_of_process_is_a_case() -> None:
    chosen = list(cases(list(EXAMPLES), stopped_seconds=20))
    assert {case.name for case in chosen if case.fault} == set(SEAMS)
    assert {case.process for case in chosen if case.stopped_seconds} == set(EXAMPLES.values())
    assert [case.process for case in chosen if not case.fault and not case.stopped_seconds] == ["supervisor"]


def test_its_faults_can_be_read() -> None:
    faults = [case.fault for case in cases(list(EXAMPLES), stopped_seconds=20) if case.fault]
    assert len(read_faults({FAULT: ",".join(faults), ALLOWED: "1"})) == len(SEAMS)


def test_an_unknown_kind_of_process_is_named() -> None:
    with pytest.raises(ConfigError, match="no kind of process 'broker'; expected worker, ps, dispatcher, supervisor"):
        list(cases(["worker", "broker"], stopped_seconds=20))

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields

from dispatch.placement.traffic import WorkerTraffic
from dispatch.protocol import TO_DISPATCHER, Report
from dispatch.tally import NO_SECONDS, PHASES, PhaseSeconds
from infra.base.errors import WireError
from infra.base.wire import Codec
from ps.phases import TRAIN

SECONDS = PhaseSeconds(push=1, pull=2, forward=4, backward=8, reduce=16, rows=32)
TRAFFIC = st.builds(WorkerTraffic, *[st.integers(0, 2**40)] * len(fields(WorkerTraffic)))


@given(TRAFFIC, TRAFFIC)
def test_what_was_added_can_be_subtracted(first: WorkerTraffic, second: WorkerTraffic) -> None:
    assert first + second - second == first
    assert (first + second).hits == first.hits + second.hits


def test_without_lookups_there_is_no_hit_ratio() -> None:
    assert (WorkerTraffic().hit_ratio, WorkerTraffic(lookups=4, hits=3).hit_ratio) == (None, 0.75)


def test_phases_are_named_in_their_order() -> None:
    assert tuple(SECONDS.by_phase()) == PHASES == PhaseSeconds.__struct_fields__


def test_seconds_are_added_up_and_averaged() -> None:
    assert (SECONDS.total, SECONDS.compute) == (63, 44)
    assert (SECONDS + SECONDS + NO_SECONDS) / 2 == SECONDS


@pytest.mark.parametrize("change", [{"pull": None}, {"wait": 1.0}])
def test_a_report_with_a_missing_or_unknown_phase_cannot_be_read(change: dict[str, float | None]) -> None:
    report = Report(
        run="r", generation=1, step=1, phase=TRAIN, worker=0, seconds=SECONDS, pulled_bytes=0, pushed_bytes=0
    )
    plain = msgspec.to_builtins(report)
    plain["seconds"] = {name: value for name, value in (plain["seconds"] | change).items() if value is not None}
    with pytest.raises(WireError, match=r"pull|wait"):
        Codec(*TO_DISPATCHER).decode([msgspec.msgpack.encode(plain), b""])

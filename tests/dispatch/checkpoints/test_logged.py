"""What is logged of a snapshot a second: changes at once, the rest with pauses that double."""

from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from dispatch.checkpoints.logged import CheckpointLog, kind_of
from infra.base.telemetry import DoublingPauses
from ps.checkpoints.manifest import Verdict
from ps.protocol import FilePart
from tests.dispatch.checkpoints.checkpoints import manifest_of

SECONDS_PER_DAY = 86_400


class Second:
    """A snapshot a second, by a clock that the test moves."""

    def __init__(self) -> None:
        self.now, self.number = 0.0, 0
        self.log = CheckpointLog(lambda: self.now)

    def take(self, *reasons: str, count: int = 1, is_publication: bool = True, is_served: bool = True) -> list[Any]:
        """So many snapshots; returns what was logged."""
        with capture_logs() as logs:
            for _ in range(count):
                self.now += 1.0
                self.number += 1
                made = manifest_of(self.number, FilePart("x", 0, ""), step=self.number)
                checkpoint = msgspec.structs.replace(made, is_publication=is_publication, verdict=Verdict(reasons))
                self.log.log_taken(checkpoint, is_served)
        return logs


@pytest.fixture
def second() -> Second:
    return Second()


def test_a_day_of_good_snapshots_is_some_dozens_of_lines_that_count_all_of_them(second: Second) -> None:
    logs = second.take(count=SECONDS_PER_DAY)
    assert len(logs) < 50
    assert {line["event"] for line in logs} == {"snapshots taken"}
    assert SECONDS_PER_DAY - sum(line["snapshots"] for line in logs) < DoublingPauses.LONGEST_SECONDS


def test_a_checkpoint_to_go_back_to_is_logged_each_time(second: Second) -> None:
    logs = second.take(count=3, is_publication=False)
    assert [(line["event"], line["checkpoint"]) for line in logs] == [
        ("checkpoint taken", 1),
        ("checkpoint taken", 2),
        ("checkpoint taken", 3),
    ]


def test_snapshots_that_stay_held_back_are_logged_less_and_less_and_another_reason_at_once(second: Second) -> None:
    same = second.take("logloss is 0.9; expected 0.4", count=1000)
    assert [line["in_a_row"] for line in same] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert second.take("logloss is 0.8; expected 0.41") == []
    (other,) = second.take("field C14 is gone")
    assert (other["event"], other["reasons"], other["log_level"]) == (
        "snapshot held back",
        ("field C14 is gone",),
        "warning",
    )
    assert len(second.take("field C15 is gone")) == 1


def test_reasons_that_take_turns_do_not_fill_the_log(second: Second) -> None:
    lines = sum(len(second.take("field a is gone")) + len(second.take()) for _ in range(1000))
    assert lines < 50


def test_the_first_good_snapshot_is_logged_at_once_with_how_many_were_held_back(second: Second) -> None:
    second.take(count=100)
    second.take("logloss is 0.9", count=5)
    (again,) = second.take()
    assert (again["event"], again["held_back"]) == ("snapshots are good again", 5)


def test_where_nobody_serves_the_model_nothing_is_said_to_be_held_back(second: Second) -> None:
    assert [line["event"] for line in second.take("logloss is 0.9", is_served=False)] == ["snapshots taken"]


def test_figures_do_not_make_another_reason_and_names_do() -> None:
    assert kind_of(("AUC of the latest 4096 samples is 0.512",)) == kind_of(("AUC of the latest 812 samples is 0.6",))
    assert kind_of(("field C1 is in 1.5%",)) != kind_of(("field C14 is in 1.5%",))

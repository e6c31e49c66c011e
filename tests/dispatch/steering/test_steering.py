"""What is told of a run that is steered."""

from pathlib import Path

import pytest

from dispatch.alpha.pilot import AlphaPilot
from dispatch.commands.desired import Desired
from dispatch.progress.status import Status
from dispatch.steering.steering import Steering, alpha_of
from tests.dispatch.journal.test_run import job_in


def test_a_status_tells_alpha_as_it_was_set_before_the_next_step_is_decided(tmp_path: Path) -> None:
    steering = Steering(job_in(tmp_path), AlphaPilot(128, 2))
    told = steering.describe(Status(run="r"), Desired(alpha=0.25), (), 1)
    assert (told.alpha, told.alpha_mode) == (0.25, "manual")


def test_a_status_tells_the_cursor_under_its_earlier_name_too(tmp_path: Path) -> None:
    told = Steering(job_in(tmp_path), AlphaPilot(128, 2)).describe(Status(run="r"), Desired(), (), 41)
    assert (told.cursor, told.version) == (41, 41)


@pytest.mark.parametrize("wanted", [Desired(alpha=0.75), Desired(is_auto=True, auto_alpha=0.75)])
def test_the_alpha_of_a_policy_is_the_ceiling_whoever_sets_it(wanted: Desired) -> None:
    assert alpha_of(wanted, "fixed", most=0.5) == 0.5
    assert alpha_of(wanted, "fixed", most=1.0) == 0.75

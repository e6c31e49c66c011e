"""What is told of a run that is steered."""

from pathlib import Path

from dispatch.alpha.pilot import AlphaPilot
from dispatch.control.steering import Steering
from dispatch.journal.desired import Desired
from dispatch.progress.status import Status
from tests.dispatch.journal.test_run import job_in


def test_a_status_tells_alpha_as_it_was_set_before_the_next_step_is_decided(tmp_path: Path) -> None:
    steering = Steering(job_in(tmp_path), AlphaPilot(128, 2))
    told = steering.describe(Status(run="r"), Desired(alpha=0.25), (), 1)
    assert (told.alpha, told.alpha_mode) == (0.25, "manual")

"""A run reaches every seam of its workers at which faults can be set, in the steps one expects."""

import pytest

from infra.base import faults
from infra.base.faults import SEAMS, WORKER
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.threads import Plan, train


class Recorder:
    """Stands in for armed faults: keeps what is reached."""

    def __init__(self) -> None:
        self.reached: set[tuple[str, int]] = set()

    def reach(self, seam: str, step: int) -> None:
        self.reached.add((seam, step))


def test_a_run_reaches_every_seam_of_its_workers(write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setattr(faults, "_armed", recorder)
    train(Plan(write_topic(512)))
    assert {name for name, seam in SEAMS.items() if seam.process == WORKER} <= {seam for seam, _ in recorder.reached}
    for seam in ("order_received", "waiting_for_pull", "after_pull", "forward", "backward", "after_report"):
        assert {step for reached, step in recorder.reached if reached == seam} == set(range(1, 9)), seam

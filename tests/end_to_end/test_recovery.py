"""A process of a run that crashes anywhere costs time: the run goes on, and equals a replay of its journal."""

from typing import Any

import pytest

from infra.faults import SEAMS
from ps.config import CutConfig, RowConfig
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.crashing import Strike, check_run, train_struck
from tests.end_to_end.threads import Plan

STEPS, BATCH = 24, 32
EVENTS = STEPS * BATCH
OFTEN = CutConfig(seconds=0.02, kept=1000)
SMALL: dict[str, Any] = {"batch": BATCH, "rows": RowConfig(dim=4), "cache_rows": 600, "cuts": OFTEN}


@pytest.mark.parametrize("seam", SEAMS)
def test_a_crash_at_any_seam_costs_time_and_no_bit(write_topic: WriteTopic, seam: str) -> None:
    plan = Plan(write_topic(EVENTS, poison=0.05), **SMALL)
    strike = Strike(seam, step=0 if seam == "start" else 6)
    result = train_struck(plan, strike)
    history = check_run(plan, result, EVENTS)
    assert history.newest is not None
    assert seam == "start" or history.newest.number > 1

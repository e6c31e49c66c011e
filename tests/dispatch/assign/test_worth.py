"""What exact solving buys."""

from dataclasses import replace

import numpy as np
import pytest

from dispatch.assign.backend import assign_on_cpu, trial_situation
from dispatch.assign.batch_cost import batch_cost
from dispatch.assign.cost import cost_matrix
from dispatch.assign.hybrid import assign_hybrid
from dispatch.assign.worth import saved_share

SITUATION = trial_situation(128, 4)
HEU_B = assign_hybrid(cost_matrix(SITUATION), SITUATION.capacity_n, alpha=0.0)


def test_the_share_is_of_heus_cost_for_the_whole_batch() -> None:
    opt_B = assign_on_cpu(SITUATION)
    expected = 1 - batch_cost(SITUATION, opt_B) / batch_cost(SITUATION, HEU_B)
    assert expected > 0
    assert saved_share(SITUATION, opt_B) == pytest.approx(expected)


def test_heus_own_assignment_saves_nothing() -> None:
    assert saved_share(SITUATION, HEU_B) == 0.0


def test_without_exact_solving_or_costs_nothing_is_said() -> None:
    assert saved_share(replace(SITUATION, alpha=0.0), HEU_B) is None
    alone = trial_situation(8, 1)
    free = replace(alone, holders_UQ=np.ones_like(alone.holders_UQ))
    assert saved_share(free, np.zeros(8, np.int32)) is None

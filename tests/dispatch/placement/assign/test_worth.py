"""What exact solving buys."""

from dataclasses import replace

import numpy as np
import pytest

from dispatch.placement.assign.backend import assign_on_cpu, trial_situation
from dispatch.placement.assign.batch_cost import batch_cost
from dispatch.placement.assign.cost import cost_matrix
from dispatch.placement.assign.hybrid import assign_hybrid
from dispatch.placement.assign.worth import weigh

SITUATION = trial_situation(128, 4)
HEU_B = assign_hybrid(cost_matrix(SITUATION), SITUATION.capacity_n, alpha=0.0)


def test_the_share_is_of_heus_cost_for_the_whole_batch() -> None:
    opt_B = assign_on_cpu(SITUATION)
    expected = 1 - batch_cost(SITUATION, opt_B) / batch_cost(SITUATION, HEU_B)
    assert expected > 0
    worth = weigh(SITUATION, opt_B, seconds=60.0)
    assert worth is not None
    assert worth.saved_share == pytest.approx(expected)


def test_heus_own_assignment_saves_nothing() -> None:
    assert weigh(SITUATION, HEU_B, seconds=0.0) == (0.0, 0.0)


def test_exact_solving_takes_what_heu_does_not() -> None:
    worth = weigh(SITUATION, HEU_B, seconds=60.0)
    assert worth is not None
    assert 0.0 < worth.exact_seconds < 60.0


def test_without_exact_solving_or_costs_nothing_is_said() -> None:
    assert weigh(replace(SITUATION, alpha=0.0), HEU_B, 0.0) is None
    alone = trial_situation(8, 1)
    free = replace(alone, holders_UQ=np.ones_like(alone.holders_UQ))
    assert weigh(free, np.zeros(8, np.int32), 0.0) is None

"""fae: the baseline with a static hot set. Its rows are replicated on all workers and all-reduced; the rest is het's.

The assignment is random's. In the first steps of a generation uses are counted (dispatch/rows/hot.py) and every row is
treated as under het. Then the most frequent rows, as many as the share of the caches allows and an all-reduce is worth,
become the hot set for the rest of the generation (dispatch/rows/replicas.py).
"""

import numpy as np
from numpy.typing import NDArray

from dispatch.assign.situation import Situation
from dispatch.policies.random_ import Random


class Fae:
    """Random assignment under full synchronisation, with a hot set."""

    def __init__(self, profile_steps: int, seed: int, name: str = "fae") -> None:
        self.name = name
        self.profile_steps = profile_steps
        self._random = Random(seed)

    def assign(self, situation: Situation) -> NDArray[np.int32]:
        return self._random.assign(situation)

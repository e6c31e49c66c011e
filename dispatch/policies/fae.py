"""fae: the baseline with a static hot set. Its rows are replicated on all workers and all-reduced; the rest is het's.

The assignment is random's. In the first steps of a generation rows are counted (dispatch/hot.py) and all are treated as
under het; then the most frequent ones, as many as the share of the caches allows and as an all-reduce is worth, become
the hot set for the rest of the generation (dispatch/replicas.py).
"""

import numpy as np
from numpy.typing import NDArray

from dispatch.policies.random_ import Random
from dispatch.situation import Situation


class Fae:
    """Random assignment under full synchronisation, with a hot set."""

    def __init__(self, profile_steps: int, seed: int, name: str = "fae") -> None:
        self.name = name
        self.profile_steps = profile_steps
        self._random = Random(seed)

    def assign(self, situation: Situation) -> NDArray[np.int32]:
        return self._random.assign(situation)

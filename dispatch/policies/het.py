"""het: the full-synchronisation baseline. Samples go anywhere; what a step trained is pushed in the next, used or not.

The assignment is random's. That every update is pushed is the directory's doing (PolicySpec.synchronisation): with a
bound of 0 on staleness it is still exact, and shows what synchronising on demand saves.
"""

import numpy as np
from numpy.typing import NDArray

from dispatch.assign.situation import Situation
from dispatch.policies.random_ import Random


class Het:
    """Random assignment under full synchronisation."""

    def __init__(self, seed: int) -> None:
        self.name = "het"
        self._random = Random(seed)

    def assign(self, situation: Situation) -> NDArray[np.int32]:
        return self._random.assign(situation)

"""het: the full-synchronisation baseline. Samples go anywhere; what a step trained is pushed in the next, used or not.

The assignment is random's, so this is ``random:full`` by its name in the papers; the directory pushes every update.
With a staleness bound of 0 it is still exact, and it shows how much synchronisation on demand saves.
"""

from dataclasses import dataclass

from dispatch.placement.assign.choices import Backend
from dispatch.placement.assign.situation import Policy
from dispatch.placement.policies.random_ import Random
from dispatch.placement.policies.spec import Needs, PlainSpec


@dataclass(frozen=True)
class HetSpec(PlainSpec):
    name = form = "het"

    @property
    def needs(self) -> Needs:
        return Needs(synchronisation="full")

    def build(self, seed: int, backend: Backend) -> Policy:
        return Random(seed)

"""``:full`` after a policy: its assignment under full synchronisation, so that the two effects can be separated.

What a step trained is pushed in the next one, whether it is used or not, as under het, which is random's assignment
with this. The policy itself decides as usual: in its costs a push still belongs to the sample that needs the row.
"""

from dataclasses import dataclass, replace

from dispatch.placement.assign.choices import Backend
from dispatch.placement.assign.situation import Policy
from dispatch.placement.policies.spec import Needs, Spec

FULL = "full"


@dataclass(frozen=True)
class FullySynchronised(Spec):
    """Another policy under full synchronisation; only one that normally synchronises on demand."""

    policy: Spec

    def __str__(self) -> str:
        return f"{self.policy}:{FULL}"

    @property
    def needs(self) -> Needs:
        return replace(self.policy.needs, synchronisation="full")

    @property
    def solves_exactly(self) -> bool:
        return self.policy.solves_exactly

    @property
    def is_plugged(self) -> bool:
        return self.policy.is_plugged

    def try_out(self) -> None:
        self.policy.try_out()

    def build(self, seed: int, backend: Backend) -> Policy:
        return self.policy.build(seed, backend)

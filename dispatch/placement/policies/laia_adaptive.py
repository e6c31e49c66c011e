"""laia_adaptive: laia by the few tables that fit into a time budget (dispatch/placement/assign/infrequency.py)."""

from collections.abc import Sequence
from dataclasses import dataclass

from dispatch.placement.assign.choices import Backend
from dispatch.placement.assign.situation import Policy
from dispatch.placement.policies.spec import NamedSpec, Spec, WrongParameter, parse_number

BUDGET_MS = 0.1


@dataclass(frozen=True)
class LaiaAdaptiveSpec(NamedSpec):
    name = "laia_adaptive"
    form = "laia_adaptive[:budget_ms]"

    budget_ms: float = BUDGET_MS
    """Time for scoring."""

    @classmethod
    def parse(cls, parameters: Sequence[str]) -> Spec | None:
        return cls(*map(_parse_budget, parameters)) if len(parameters) <= 1 else None

    def __str__(self) -> str:
        return f"laia_adaptive:{self.budget_ms:g}" if self.budget_ms != BUDGET_MS else "laia_adaptive"

    def build(self, seed: int, backend: Backend) -> Policy:
        from dispatch.placement.assign.infrequency import LaiaAdaptive

        return LaiaAdaptive(self.budget_ms)


def _parse_budget(written: str) -> float:
    budget_ms = parse_number(written)
    if not 0.0 < budget_ms < float("inf"):
        raise WrongParameter("budget", written, "milliseconds above 0 for scoring", f"laia_adaptive:{2 * BUDGET_MS:g}")
    return budget_ms

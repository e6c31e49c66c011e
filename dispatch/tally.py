"""The time that a worker spent in each phase of its steps, in seconds that can be added up."""

from typing import Literal, get_args

from msgspec.structs import astuple

from dispatch.placement.traffic import Tally
from infra.base.wire import Seconds

Phase = Literal["push", "pull", "forward", "backward", "reduce", "rows"]
"""The phases of a step, in order; see trainer/worker.py."""
PHASES: tuple[Phase, ...] = get_args(Phase)


class PhaseSeconds(Tally, frozen=True, forbid_unknown_fields=True):
    """Seconds spent in each phase of a step; 0 in phases that a round does not have."""

    push: Seconds
    pull: Seconds
    forward: Seconds
    backward: Seconds
    reduce: Seconds
    rows: Seconds

    @property
    def total(self) -> float:
        return self.push + self.pull + self.forward + self.backward + self.reduce + self.rows

    @property
    def compute(self) -> float:
        """Seconds spent computing; in the other phases a worker waits for links or for other workers."""
        return self.forward + self.backward + self.rows

    def by_phase(self) -> dict[Phase, float]:
        return {phase: getattr(self, phase) for phase in PHASES}

    def __truediv__(self, steps: int) -> "PhaseSeconds":
        """Mean seconds per step."""
        return PhaseSeconds(*(seconds / steps for seconds in astuple(self)))


NO_SECONDS = PhaseSeconds(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)

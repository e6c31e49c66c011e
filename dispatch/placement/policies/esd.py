"""esd: the cost of each sample on each worker, then HybridDis with alpha (dispatch/placement/assign/hybrid.py)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from dispatch.placement.assign.choices import Backend, Criterion
from dispatch.placement.assign.situation import Policy
from dispatch.placement.policies.spec import ELASTIC, HOT, NamedSpec, Needs, Spec, needs_of, parse_alpha, split_last

CRITERIA: tuple[Criterion, ...] = get_args(Criterion)
LITERAL = "literal"
STRICT = "strict"


@dataclass(frozen=True)
class EsdSpec(NamedSpec):
    name = "esd"
    form = f"esd[:alpha[:criterion]][:{LITERAL}][:{STRICT}][:elastic][:hot] (criterion: {', '.join(CRITERIA)})"

    alpha: float = 1.0
    """Share of the samples that are assigned exactly."""
    criterion: Criterion = CRITERIA[0]
    """Which samples those are."""
    literal: bool = False
    """Whether the exact ones fill a share of every worker's places, as published, instead of any places."""
    strict: bool = False
    """Whether a split row counts as held by nobody in the cost of a sample, instead of by its part-holders."""
    elastic: bool = False
    hot: bool = False
    """Whether rows that cost less in a ring are replicated there."""

    @classmethod
    def parse(cls, parameters: Sequence[str]) -> Spec | None:
        written, hot = split_last(parameters, HOT)
        written, elastic = split_last(written, ELASTIC)
        written, strict = split_last(written, STRICT)
        written, literal = split_last(written, LITERAL)
        if len(written) > 2:
            return None
        alpha = parse_alpha(written[0], "esd:0.5") if written else 1.0
        wanted = written[1] if len(written) == 2 else CRITERIA[0]
        found = next((criterion for criterion in CRITERIA if criterion == wanted), None)
        return cls(alpha, found, literal, strict, elastic, hot) if found is not None else None

    def __str__(self) -> str:
        criterion = [self.criterion] * (self.criterion != CRITERIA[0])
        chosen = [*[LITERAL] * self.literal, *[STRICT] * self.strict, *[ELASTIC] * self.elastic, *[HOT] * self.hot]
        return ":".join(["esd", f"{self.alpha:g}", *criterion, *chosen])

    @property
    def needs(self) -> Needs:
        return needs_of(self.alpha, self.elastic, self.hot)

    @property
    def solves_exactly(self) -> bool:
        return True

    def build(self, seed: int, backend: Backend) -> Policy:
        from dispatch.placement.assign.backend import use_opt
        from dispatch.placement.assign.hybrid import Esd, assign_hybrid, assign_literal

        mix = assign_literal if self.literal else assign_hybrid
        return Esd(self.criterion, use_opt(backend), mix, parts_hold=not self.strict)

"""joint: the cost of the batch as a whole, not of its samples one by one (dispatch/placement/assign/improvement.py)."""

from collections.abc import Sequence
from dataclasses import dataclass

from dispatch.placement.assign.choices import Backend
from dispatch.placement.assign.situation import Policy
from dispatch.placement.policies.spec import (
    ELASTIC,
    HOT,
    NamedSpec,
    Needs,
    Spec,
    WrongParameter,
    needs_of,
    parse_alpha,
    parse_count,
    split_last,
)

ROUNDS = 8
"""Number of rounds; more of them hardly lower the cost of a batch any further."""
MOST_ROUNDS = 1000


@dataclass(frozen=True)
class JointSpec(NamedSpec):
    name = "joint"
    form = "joint[:rounds[:alpha]][:elastic][:hot]"

    rounds: int = ROUNDS
    alpha: float = 1.0
    """Share of exact solving: 0 is Heu, ¼ Opt, 1 all rounds."""
    elastic: bool = False
    hot: bool = False
    """Whether rows that cost less in a ring are replicated there."""

    @classmethod
    def parse(cls, parameters: Sequence[str]) -> Spec | None:
        written, hot = split_last(parameters, HOT)
        written, elastic = split_last(written, ELASTIC)
        if len(written) > 2:
            return None
        rounds = _parse_rounds(written[0]) if written else ROUNDS
        return cls(rounds, parse_alpha(written[1], "joint:8:0.5") if len(written) == 2 else 1.0, elastic, hot)

    def __str__(self) -> str:
        alpha = [f"{self.alpha:g}"] * (self.alpha != 1.0)
        rounds = [str(self.rounds)] * (self.rounds != ROUNDS or bool(alpha))
        return ":".join(["joint", *rounds, *alpha, *[ELASTIC] * self.elastic, *[HOT] * self.hot])

    @property
    def needs(self) -> Needs:
        return needs_of(self.alpha, self.elastic, self.hot)

    @property
    def solves_exactly(self) -> bool:
        return True

    def build(self, seed: int, backend: Backend) -> Policy:
        from dispatch.placement.assign.backend import use_opt
        from dispatch.placement.assign.improvement import Joint

        return Joint(self.rounds, seed, use_opt(backend))


def _parse_rounds(written: str) -> int:
    rounds = parse_count(written)
    if not 0 <= rounds <= MOST_ROUNDS:
        expected = f"a whole number from 0 (Opt alone) to {MOST_ROUNDS}"
        raise WrongParameter("number of rounds", written, expected, f"joint:{ROUNDS}")
    return rounds

"""fae: the baseline with a static hot set, of which every worker has replicas that are all-reduced; the rest is as in
het.

The assignment is random's. In the first steps of a generation uses are counted (dispatch/placement/rows/hot.py) and
every row is treated as under het. Then the most frequent rows, as many as the share of the caches allows and as are
cheaper to all-reduce, become the hot set for the rest of the generation (dispatch/placement/rows/replicas.py). In the
literal form, as published, it fills its share whatever its rows cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dispatch.placement.assign.choices import Backend
from dispatch.placement.assign.situation import Policy
from dispatch.placement.policies.random_ import Random
from dispatch.placement.policies.spec import (
    NamedSpec,
    Needs,
    Spec,
    WrongParameter,
    parse_count,
    parse_number,
    split_last,
)

HOT_SHARE = 0.1
PROFILE_STEPS = 8
MOST_PROFILE_STEPS = 1_000_000
LITERAL = "literal"


@dataclass(frozen=True)
class FaeSpec(NamedSpec):
    name = "fae"
    form = f"fae[:share[:profile_steps]][:{LITERAL}]"

    hot_share: float = HOT_SHARE
    """Share of each cache that the hot set may fill."""
    profile_steps: int = PROFILE_STEPS
    literal: bool = False
    """Whether the hot set fills its share, as published, instead of omitting rows that do not pay off."""

    @classmethod
    def parse(cls, parameters: Sequence[str]) -> Spec | None:
        written, literal = split_last(parameters, LITERAL)
        if len(written) > 2:
            return None
        share = _parse_share(written[0]) if written else HOT_SHARE
        return cls(share, _parse_steps(written[1]) if len(written) == 2 else PROFILE_STEPS, literal)

    def __str__(self) -> str:
        steps = [str(self.profile_steps)] * (self.profile_steps != PROFILE_STEPS)
        share = [f"{self.hot_share:g}"] * (self.hot_share != HOT_SHARE or bool(steps))
        return ":".join(["fae", *share, *steps, *[LITERAL] * self.literal])

    @property
    def needs(self) -> Needs:
        return Needs("full", self.hot_share, self.profile_steps, only_worthwhile=not self.literal)

    def build(self, seed: int, backend: Backend) -> Policy:
        return Random(seed)


def _parse_share(written: str) -> float:
    share = parse_number(written)
    if not 0.0 < share < 1.0:
        expected = "a number above 0 and below 1, the part of each cache for the hot set"
        raise WrongParameter("hot share", written, expected, f"fae:{HOT_SHARE:g}")
    return share


def _parse_steps(written: str) -> int:
    steps = parse_count(written)
    if not 1 <= steps <= MOST_PROFILE_STEPS:
        expected = f"a whole number from 1 to {MOST_PROFILE_STEPS}"
        raise WrongParameter("number of profile steps", written, expected, f"fae:{HOT_SHARE:g}:{PROFILE_STEPS}")
    return steps

"""joint: the cost of the batch as a whole, not of its samples one by one (dispatch/assign/improvement.py)."""

from collections.abc import Sequence
from dataclasses import dataclass

from dispatch.assign.choices import OptBackend
from dispatch.assign.situation import Policy
from dispatch.policies.spec import ELASTIC, Needs, Spec, WrongParameter, parse_count, split_elastic

ROUNDS = 8
"""more of them hardly lower the cost of a batch any further"""
MOST_ROUNDS = 1000


@dataclass(frozen=True)
class JointSpec(Spec):
    name = "joint"
    form = "joint[:rounds][:elastic]"

    rounds: int = ROUNDS
    elastic: bool = False

    @classmethod
    def parse(cls, parameters: Sequence[str]) -> Spec | None:
        written, elastic = split_elastic(parameters)
        if len(written) > 1:
            return None
        return cls(_parse_rounds(written[0]) if written else ROUNDS, elastic)

    def __str__(self) -> str:
        rounds = [str(self.rounds)] * (self.rounds != ROUNDS)
        return ":".join(["joint", *rounds, *[ELASTIC] * self.elastic])

    @property
    def needs(self) -> Needs:
        return Needs(elastic=self.elastic)

    def build(self, seed: int, opt_backend: OptBackend) -> Policy:
        from dispatch.assign.improvement import Joint

        return Joint(self.rounds, seed)


def _parse_rounds(written: str) -> int:
    rounds = parse_count(written)
    if not 0 <= rounds <= MOST_ROUNDS:
        expected = f"a whole number from 0 (Opt alone) to {MOST_ROUNDS}"
        raise WrongParameter("number of rounds", written, expected, f"joint:{ROUNDS}")
    return rounds

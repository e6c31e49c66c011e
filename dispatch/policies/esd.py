"""esd: the cost of each sample on each worker, then HybridDis with alpha (dispatch/assign/hybrid.py)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from dispatch.assign.choices import Criterion, OptBackend
from dispatch.assign.situation import Policy
from dispatch.policies.spec import ELASTIC, Needs, Spec, WrongParameter, parse_number, split_elastic

CRITERIA: tuple[Criterion, ...] = get_args(Criterion)


@dataclass(frozen=True)
class EsdSpec(Spec):
    name = "esd"
    form = f"esd[:alpha[:criterion]][:elastic] (criterion: {', '.join(CRITERIA)})"

    alpha: float = 1.0
    """share of every worker's samples that are assigned exactly"""
    criterion: Criterion = CRITERIA[0]
    """which samples those are"""
    elastic: bool = False

    @classmethod
    def parse(cls, parameters: Sequence[str]) -> Spec | None:
        written, elastic = split_elastic(parameters)
        if len(written) > 2:
            return None
        alpha = _parse_alpha(written[0]) if written else 1.0
        wanted = written[1] if len(written) == 2 else CRITERIA[0]
        return next((cls(alpha, criterion, elastic) for criterion in CRITERIA if criterion == wanted), None)

    def __str__(self) -> str:
        criterion = [self.criterion] * (self.criterion != CRITERIA[0])
        return ":".join(["esd", f"{self.alpha:g}", *criterion, *[ELASTIC] * self.elastic])

    @property
    def needs(self) -> Needs:
        return Needs(elastic=self.elastic)

    def build(self, seed: int, opt_backend: OptBackend) -> Policy:
        from dispatch.assign.backend import choose_opt
        from dispatch.assign.hybrid import Esd

        return Esd(self.alpha, self.criterion, choose_opt(opt_backend))


def _parse_alpha(written: str) -> float:
    alpha = parse_number(written)
    if not 0.0 <= alpha <= 1.0:
        raise WrongParameter("alpha", written, "a number from 0 (all by Heu) to 1 (all by Opt)", "esd:0.5")
    return alpha

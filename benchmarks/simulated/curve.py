"""The trade-off of alpha: how long decisions take and what they move, over shares of exact solving.

All policies and shares decide each batch in turn before any sees the next one, each with a separate directory, so that
other load on the machine affects all of them alike. Decision times are medians; ``assign_ms`` is the part that depends
on alpha, the rest looks rows up and plans who moves them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

import msgspec
import numpy as np
from rich.table import Table

from benchmarks.simulated.dispatch import SEED, Totals, decide, make_directory
from benchmarks.simulated.sizes import DenseCharges
from benchmarks.simulated.workload import Workload
from dispatch.placement.assign.situation import Assignment, Policy, Situation
from dispatch.placement.capacity.elastic import ElasticTerms
from dispatch.placement.decide import Decider, warm_up
from dispatch.placement.policies.registry import parse_spec
from dispatch.placement.rows.index import Index
from infra.base.errors import ConfigError


class CurvePoint(msgspec.Struct, frozen=True):
    """One policy with one alpha."""

    policy: str
    alpha: float
    decide_ms: float
    assign_ms: float
    megabytes: float
    """Megabytes of rows and dense weights, both directions."""
    saved: float
    """Share of the bytes over bandwidth that is saved compared with the same policy with the first alpha."""


@dataclass
class TimedPolicy:
    """A policy, and how long each of its assignments took."""

    policy: Policy
    seconds: list[float] = field(default_factory=list)

    def assign(self, situation: Situation) -> Assignment:
        began = perf_counter()
        assignment = self.policy.assign(situation)
        self.seconds.append(perf_counter() - began)
        return assignment


class Candidate:
    """One policy with one alpha, deciding batch after batch."""

    def __init__(self, workload: Workload, policy: str, alpha: float) -> None:
        spec = parse_spec(policy)
        self.alpha = alpha
        self._name = str(spec)
        self._workload = workload
        self._timed = TimedPolicy(spec.build(SEED, "cpu"))
        directory = make_directory(workload, spec)
        self._decider = Decider(
            index=Index(),
            directory=directory,
            policy=self._timed,
            needs=spec.needs,
            row_cost_n=workload.row_cost_n,
            push_cost_n=workload.known_push_cost_n,
            elastic=ElasticTerms(dense=workload.sizes.dense_load),
            value_share=workload.sizes.value_share,
        )
        self._decider.alpha = alpha
        self._totals = Totals(workload)
        self._charges = DenseCharges(workload.sizes, workload.workers)

    def step(self, step: int) -> None:
        workload = self._workload
        whole = self._workload.batch * self._workload.workers
        decision = decide(self._decider, workload, step, workload.keys_KF[step * whole : (step + 1) * whole])
        dense_n = self._charges.step(np.bincount(decision.assignment_B, minlength=workload.workers) > 0, decision.sole)
        if step >= workload.warm_up:
            self._totals.add(decision, dense_n)

    def point(self, first: "Candidate") -> CurvePoint:
        """first: the candidate that savings are compared with."""
        result = self._totals.result(self._name, 0)
        before = first._totals.result(first._name, 0)
        assign_ms = 1000 * float(np.median(self._timed.seconds[self._workload.warm_up :]))
        megabytes = sum(msgspec.structs.astuple(result.megabytes))
        saved = 1 - result.cost / before.cost if before.cost else 0.0
        return CurvePoint(self._name, self.alpha, result.decide_ms.p50, assign_ms, megabytes, saved)


def run_curve(workload: Workload, policies: Sequence[str], alphas: Sequence[float]) -> list[CurvePoint]:
    """One point per policy and alpha."""
    for policy in policies:
        warm_up(policy, SEED)
    candidates = [[Candidate(workload, policy, alpha) for alpha in alphas] for policy in policies]
    every = [candidate for of_policy in candidates for candidate in of_policy]
    for step in range(workload.steps):
        turn = step % len(every)
        for candidate in every[turn:] + every[:turn]:
            candidate.step(step)
    return [candidate.point(of_policy[0]) for of_policy in candidates for candidate in of_policy]


def parse_alphas(text: str, policies: Sequence[str]) -> list[float]:
    """Shares as written on the command line, for policies that have one."""
    try:
        alphas = [float(part) for part in text.split(",")]
    except ValueError:
        alphas = []
    if not alphas or not all(0 <= alpha <= 1 for alpha in alphas):
        raise ConfigError(
            f"alphas {text!r} cannot be compared; expected numbers from 0 to 1, comma-separated; correct --alphas"
        )
    for policy in policies:
        spec = parse_spec(policy)
        if not spec.solves_exactly or spec.needs.alpha < max(alphas):
            raise ConfigError(
                f"policy {policy!r} has no alpha of {max(alphas):g}; expected esd or joint with as much; correct "
                f"--policies or --alphas"
            )
    return alphas


def curve_table(points: Sequence[CurvePoint]) -> Table:
    table = Table(title="medians; saved: bytes over bandwidth, against the first alpha", box=None, padding=(0, 2, 0, 0))
    for name in ("policy", "alpha", "decide ms", "of it assigning", "MB moved", "saved"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for point in points:
        table.add_row(
            point.policy,
            f"{point.alpha:g}",
            f"{point.decide_ms:.2f}",
            f"{point.assign_ms:.2f}",
            f"{point.megabytes:,.1f}",
            f"{point.saved:.1%}",
        )
    return table

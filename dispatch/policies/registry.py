"""From a policy's specification to the policy."""

from typing import cast

from dispatch.elastic import ElasticPolicy
from dispatch.hybrid import Criterion
from dispatch.policies.esd import Esd
from dispatch.policies.joint import Joint
from dispatch.policies.laia import Laia
from dispatch.policies.random_ import Random
from dispatch.policies.round_robin import RoundRobin
from dispatch.policies.spec import PolicySpec, parse_spec
from dispatch.situation import Policy


def build_policy(spec: str, seed: int) -> Policy:
    """The policy written as ``laia``, ``esd:0.5``, ``joint:4:elastic`` …; seed is for those that draw."""
    wanted = parse_spec(spec)
    policy = _build(wanted, seed)
    return ElasticPolicy(policy) if wanted.elastic else policy


def _build(wanted: PolicySpec, seed: int) -> Policy:
    if wanted.name == "random":
        return Random(seed)
    if wanted.name == "round_robin":
        return RoundRobin()
    if wanted.name == "laia":
        return Laia()
    if wanted.name == "joint":
        return Joint(wanted.rounds, seed, str(wanted))
    return Esd(wanted.alpha, cast(Criterion, wanted.criterion), str(wanted))

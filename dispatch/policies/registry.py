"""From a policy's specification to the policy."""

from typing import cast

from dispatch.assign.backend import OptBackend, choose_opt
from dispatch.assign.hybrid import Criterion
from dispatch.assign.situation import Policy
from dispatch.capacity.elastic import ElasticPolicy
from dispatch.policies.esd import Esd
from dispatch.policies.fae import Fae
from dispatch.policies.het import Het
from dispatch.policies.joint import Joint
from dispatch.policies.laia import Laia
from dispatch.policies.laia_adaptive import LaiaAdaptive
from dispatch.policies.random_ import Random
from dispatch.policies.round_robin import RoundRobin
from dispatch.policies.spec import PolicySpec, parse_spec


def build_policy(spec: str, seed: int, opt_backend: OptBackend = "cpu") -> Policy:
    """The policy written as ``laia``, ``joint:4:elastic`` …; seed is for those that draw, opt_backend for esd."""
    wanted = parse_spec(spec)
    policy = _build(wanted, seed, opt_backend)
    return ElasticPolicy(policy) if wanted.elastic else policy


def _build(wanted: PolicySpec, seed: int, opt_backend: OptBackend) -> Policy:
    if wanted.name == "random":
        return Random(seed)
    if wanted.name == "round_robin":
        return RoundRobin()
    if wanted.name == "laia":
        return Laia()
    if wanted.name == "laia_adaptive":
        return LaiaAdaptive(wanted.budget_ms, str(wanted))
    if wanted.name == "het":
        return Het(seed)
    if wanted.name == "fae":
        return Fae(wanted.profile_steps, seed, str(wanted))
    if wanted.name == "joint":
        return Joint(wanted.rounds, seed, str(wanted))
    return Esd(wanted.alpha, cast(Criterion, wanted.criterion), str(wanted), choose_opt(opt_backend))

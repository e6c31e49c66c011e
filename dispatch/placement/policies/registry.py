"""All policies by name. To add one, add a file next to this and a line below; those of other packages are found."""

import re
from difflib import get_close_matches

from dispatch.placement.assign.choices import Backend
from dispatch.placement.assign.situation import Policy
from dispatch.placement.policies.esd import EsdSpec
from dispatch.placement.policies.fae import FaeSpec
from dispatch.placement.policies.full import FULL, FullySynchronised
from dispatch.placement.policies.het import HetSpec
from dispatch.placement.policies.joint import JointSpec
from dispatch.placement.policies.laia import LaiaSpec
from dispatch.placement.policies.laia_adaptive import LaiaAdaptiveSpec
from dispatch.placement.policies.plugged import parse_plugged
from dispatch.placement.policies.random_ import RandomSpec
from dispatch.placement.policies.round_robin import RoundRobinSpec
from dispatch.placement.policies.spec import NamedSpec, Spec, WrongParameter, split_last
from infra.base.errors import ConfigError

SPECS: dict[str, type[NamedSpec]] = {
    spec.name: spec
    for spec in (
        RandomSpec,
        RoundRobinSpec,
        LaiaSpec,
        HetSpec,
        FaeSpec,
        LaiaAdaptiveSpec,
        EsdSpec,
        JointSpec,
    )
}

SHOWN_LETTERS = 80


def parse_spec(text: str) -> Spec:
    """Reads a policy's name and parameters; anything unknown is refused with the choices."""
    name, *parameters = text.strip().split(":")
    try:
        spec = _parse(name, parameters)
    except WrongParameter as wrong:
        raise ConfigError(
            f"policy cannot be built; {wrong.name} of {_quoted(text)} is {_quoted(wrong.written)}; expected "
            f"{wrong.expected}; correct dispatch.policy, for example to {_meant(text) or repr(wrong.example)}"
        ) from wrong
    if spec is None:
        choices = ", ".join(known.form for known in SPECS.values())
        raise ConfigError(
            f"policy cannot be built; got {_quoted(text)}; expected one of {choices}; all but het and fae may "
            f"end in :{FULL}; or one of an installed package, also as module:Name; correct dispatch.policy"
            f"{f', perhaps to {meant}' if (meant := _meant(text)) else ''}"
        )
    return spec


def _parse(name: str, parameters: list[str]) -> Spec | None:
    written, is_full = split_last(parameters, FULL)
    spec = SPECS[name].parse(written) if name in SPECS else parse_plugged(name, written)
    if spec is None or not is_full:
        return spec
    return FullySynchronised(spec) if spec.needs.synchronisation == "on_demand" else None


def _meant(text: str) -> str:
    """The policy that differs only in misspelt words, in quotes; empty if there is none."""
    words = {word for spec in SPECS.values() for word in re.findall(r"[a-z_]{3,}", spec.form)} | {*SPECS, FULL}
    near = [get_close_matches(part, sorted(words), n=1) or [part] for part in text.strip().split(":")]
    name, *parameters = (part for (part,) in near)
    try:
        is_policy = name in SPECS and _parse(name, parameters) is not None
    except WrongParameter:
        is_policy = False
    return repr(":".join((name, *parameters))) if is_policy else ""


def _quoted(text: str) -> str:
    """What was written, in quotes, shortened to fit into a line."""
    return repr(text if len(text) <= SHOWN_LETTERS else f"{text[:SHOWN_LETTERS]}…")


def build_policy(text: str, seed: int, backend: Backend = "cpu") -> Policy:
    """The policy written as ``laia``, ``joint:4:elastic`` …"""
    return parse_spec(text).build(seed, backend)

"""The defaults of ``freshet up`` and ``freshet demo`` if links are uneven and no policy was set.

Equal capacity makes every step wait for the slowest link. So with links of different speeds the policy is
``joint:elastic``, and decisions are shortened to fit into a step. Both depend on measured times: the model is then the
same within floating-point tolerance, not bit for bit. A policy that was set is used as it is, without a deadline.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dispatch.config import DispatchConfig
from dispatch.placement.policies.registry import parse_spec
from infra.run.settings import Settings, load_settings

UNEVEN_POLICY = "joint:elastic"
"""Compared with esd:1:elastic and others by ``freshet bench train``."""


def up_settings(config: Path | None, overrides: Iterable[str], defaults: Mapping[str, Any]) -> Settings:
    """Settings with the defaults that suit their links; a file, the environment and flags take precedence."""
    chosen = list(overrides)
    for preferred in (prefer_policy, prefer_deadline):
        found = load_settings(config, chosen, defaults)
        defaults = {**defaults, "dispatch": {**defaults.get("dispatch", {}), **preferred(found.dispatch)}}
    return load_settings(config, chosen, defaults)


def prefer_policy(dispatch: DispatchConfig) -> dict[str, Any]:
    return {"policy": UNEVEN_POLICY} if len(set(dispatch.links)) > 1 else {}


def prefer_deadline(dispatch: DispatchConfig) -> dict[str, Any]:
    """Uses a deadline with an elastic policy, whose decisions depend on the clock anyway."""
    return {"deadline": True} if parse_spec(dispatch.policy).needs.elastic else {}

"""How a policy is written in settings: its name, then its parameters behind colons, as in ``esd:0.5:min3-min``.

``esd`` and ``joint`` may end in ``:elastic``: capacities then follow links and measured times instead of being equal.
Loads no kernels, so that a settings file can be checked quickly.
"""

from dataclasses import dataclass
from typing import Literal

from infra.errors import ConfigError

CRITERIA = ("min2-min", "min3-min", "min3-min2", "mean")
PLAIN = ("random", "round_robin", "laia", "het")
CHOICES = (
    *PLAIN,
    "fae[:share[:profile_steps]]",
    "laia_adaptive[:budget_ms]",
    "esd[:alpha[:criterion]][:elastic]",
    "joint[:rounds][:elastic]",
)
BUDGET_MS = 0.1
"""time for scoring that laia_adaptive takes if it is not told"""
Synchronisation = Literal["on_demand", "full"]
"""whether an update is pushed when another worker needs the row, or always in the step after it"""
ELASTIC = "elastic"
ROUNDS = 8
"""of joint, unless it says otherwise: more of them hardly lower the cost of a batch any further"""
MOST_ROUNDS = 1000
HOT_SHARE = 0.1
"""of fae, unless it says otherwise: how much of each cache the hot set may fill"""
PROFILE_STEPS = 8
"""of fae, unless it says otherwise: steps of a generation in which uses are counted before the hot set is chosen"""
MOST_PROFILE_STEPS = 1_000_000


@dataclass(frozen=True)
class PolicySpec:
    """A policy's name and its parameters: alpha and criterion of esd, rounds of joint, budget_ms of laia_adaptive,
    hot_share and profile_steps of fae."""

    name: str
    alpha: float = 1.0
    criterion: str = CRITERIA[0]
    budget_ms: float = BUDGET_MS
    rounds: int = ROUNDS
    elastic: bool = False
    hot_share: float = 0.0
    profile_steps: int = 0

    @property
    def synchronisation(self) -> Synchronisation:
        """What the directory must do with updates under this policy."""
        return "full" if self.name in ("het", "fae") else "on_demand"

    def __str__(self) -> str:
        words = [self.name]
        if self.name == "laia_adaptive":
            words += [f"{self.budget_ms:g}"] * (self.budget_ms != BUDGET_MS)
        if self.name == "esd":
            words += [f"{self.alpha:g}"] + [self.criterion] * (self.criterion != CRITERIA[0])
        if self.name == "joint":
            words += [str(self.rounds)] * (self.rounds != ROUNDS)
        if self.name == "fae":
            other_steps = self.profile_steps != PROFILE_STEPS
            words += [f"{self.hot_share:g}"] * (other_steps or self.hot_share != HOT_SHARE)
            words += [str(self.profile_steps)] * other_steps
        return ":".join(words + [ELASTIC] * self.elastic)


def parse_spec(text: str) -> PolicySpec:
    """Reads a policy's name and parameters; anything unknown is refused with the choices."""
    name, *parameters = text.strip().split(":")
    if name in PLAIN and not parameters:
        return PolicySpec(name)
    if name == "laia_adaptive" and len(parameters) <= 1:
        return PolicySpec(name, budget_ms=_parse_budget(text, parameters[0]) if parameters else BUDGET_MS)
    if name == "fae" and len(parameters) <= 2:
        share = _parse_share(text, parameters[0]) if parameters else HOT_SHARE
        steps = _parse_profile_steps(text, parameters[1]) if len(parameters) == 2 else PROFILE_STEPS
        return PolicySpec(name, hot_share=share, profile_steps=steps)
    elastic = parameters[-1:] == [ELASTIC]
    if elastic:
        parameters = parameters[:-1]
    if name == "esd" and len(parameters) <= 2:
        alpha = _parse_alpha(text, parameters[0]) if parameters else 1.0
        criterion = parameters[1] if len(parameters) == 2 else CRITERIA[0]
        if criterion in CRITERIA:
            return PolicySpec(name, alpha, criterion, elastic=elastic)
    if name == "joint" and len(parameters) <= 1:
        return PolicySpec(name, rounds=_parse_rounds(text, parameters[0]) if parameters else ROUNDS, elastic=elastic)
    raise ConfigError(
        f"Policy cannot be built: got {text!r}; expected one of {', '.join(CHOICES)}, with a criterion out of "
        f"{', '.join(CRITERIA)}. Correct dispatch.policy."
    )


def _parse_rounds(text: str, written: str) -> int:
    if not (written.isascii() and written.isdecimal() and int(written) <= MOST_ROUNDS):
        raise ConfigError(
            f"Policy cannot be built: rounds of {text!r} are {written!r}; expected a whole number from 0 (Opt alone) "
            f"to {MOST_ROUNDS}. Correct dispatch.policy, for example to 'joint:{ROUNDS}'."
        )
    return int(written)


def _parse_share(text: str, written: str) -> float:
    try:
        share = float(written)
    except ValueError:
        share = float("nan")
    if not 0.0 < share < 1.0:
        raise ConfigError(
            f"Policy cannot be built: hot share of {text!r} is {written!r}; expected a number above 0 and below 1, "
            f"the part of each cache for the hot set. Correct dispatch.policy, for example to 'fae:{HOT_SHARE:g}'."
        )
    return share


def _parse_profile_steps(text: str, written: str) -> int:
    if not (written.isascii() and written.isdecimal() and 1 <= int(written) <= MOST_PROFILE_STEPS):
        raise ConfigError(
            f"Policy cannot be built: profile steps of {text!r} are {written!r}; expected a whole number from 1 to "
            f"{MOST_PROFILE_STEPS}. Correct dispatch.policy, for example to 'fae:{HOT_SHARE:g}:{PROFILE_STEPS}'."
        )
    return int(written)


def _parse_alpha(text: str, written: str) -> float:
    try:
        alpha = float(written)
    except ValueError:
        alpha = float("nan")
    if not 0.0 <= alpha <= 1.0:
        raise ConfigError(
            f"Policy cannot be built: alpha of {text!r} is {written!r}; expected a number from 0 (all by Heu) to 1 "
            f"(all by Opt). Correct dispatch.policy, for example to 'esd:0.5'."
        )
    return alpha


def _parse_budget(text: str, written: str) -> float:
    try:
        budget_ms = float(written)
    except ValueError:
        budget_ms = float("nan")
    if not 0.0 < budget_ms < float("inf"):
        raise ConfigError(
            f"Policy cannot be built: budget of {text!r} is {written!r}; expected milliseconds above 0 for scoring. "
            f"Correct dispatch.policy, for example to 'laia_adaptive:0.2'."
        )
    return budget_ms

"""How a policy is written in settings: its name, then its parameters behind colons, as in ``esd:0.5:min3-min``.

Loads no kernels, so that a settings file can be checked quickly.
"""

from dataclasses import dataclass

from infra.errors import ConfigError

CRITERIA = ("min2-min", "min3-min", "min3-min2", "mean")
CHOICES = ("random", "round_robin", "laia", "esd[:alpha[:criterion]]")


@dataclass(frozen=True)
class PolicySpec:
    """A policy's name and the parameters it was given; alpha and criterion belong to esd alone."""

    name: str
    alpha: float = 1.0
    criterion: str = CRITERIA[0]

    def __str__(self) -> str:
        if self.name != "esd":
            return self.name
        criterion = "" if self.criterion == CRITERIA[0] else f":{self.criterion}"
        return f"esd:{self.alpha:g}{criterion}"


def parse_spec(text: str) -> PolicySpec:
    """Reads a policy's name and parameters; anything unknown is refused with the choices."""
    name, *parameters = text.strip().split(":")
    if name in ("random", "round_robin", "laia") and not parameters:
        return PolicySpec(name)
    if name == "esd" and len(parameters) <= 2:
        alpha = _parse_alpha(text, parameters[0]) if parameters else 1.0
        criterion = parameters[1] if len(parameters) == 2 else CRITERIA[0]
        if criterion in CRITERIA:
            return PolicySpec("esd", alpha, criterion)
    raise ConfigError(
        f"Policy cannot be built: got {text!r}; expected one of {', '.join(CHOICES)}, with a criterion out of "
        f"{', '.join(CRITERIA)}. Correct dispatch.policy."
    )


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

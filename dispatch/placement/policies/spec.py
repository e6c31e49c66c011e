"""What all policies have in common: how they are written in settings, and what they may need from the dispatcher.

A policy is written as its name followed by its parameters, separated by colons, as in ``esd:0.5:min3-min``. A policy
that allows it may end in ``:elastic``: capacities then follow links and measured times instead of being equal. It may
end in ``:hot``, after that: in a ring, rows that cost less if every worker has a replica are replicated
(dispatch/placement/rows/two_fold.py). A final ``:full`` makes synchronisation full
(dispatch/placement/policies/full.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dispatch.placement.assign.choices import Backend
from dispatch.placement.assign.situation import Policy

if TYPE_CHECKING:  # loads kernels
    from dispatch.placement.rows.directory import Synchronisation

ELASTIC = "elastic"
HOT = "hot"
HOT_SHARE = 0.03
"""Share of each cache that ``:hot`` reserves for replicas."""


@dataclass(frozen=True)
class Needs:
    """What the dispatcher must provide for a policy, besides its situations."""

    synchronisation: "Synchronisation" = "on_demand"
    hot_share: float = 0.0
    """Share of each cache that is reserved for a hot set; 0: the policy has none."""
    profile_steps: int = 0
    """Steps of a generation in which uses are counted before the hot set is chosen."""
    only_worthwhile: bool = True
    """Whether the hot set omits rows that are cheaper to push and pull than to all-reduce."""
    hot_by_cost: bool = False
    """Whether the hot set is chosen after every flush, by what rows have cost since the last one; over the hub, where
    nothing can be saved, there is none.
    """
    elastic: bool = False
    """Whether capacities follow links and measured times instead of being equal."""
    alpha: float = 1.0
    """Share of exact solving at the start; only policies with such a share use it."""

    @property
    def ring(self) -> bool:
        """Whether workers must sum gradients among themselves."""
        return self.hot_share > 0 and not self.hot_by_cost


class WrongParameter(Exception):
    """A parameter has an invalid value; becomes a ConfigError that quotes the whole text."""

    def __init__(self, name: str, written: str, expected: str, example: str) -> None:
        super().__init__(f"{name} is {written!r}; expected {expected}")
        self.name = name
        self.written = written
        self.expected = expected
        self.example = example


class Spec(ABC):
    """A policy with its parameters. Implementations are frozen dataclasses; ``str`` gives the normal form."""

    @property
    def needs(self) -> Needs:
        return Needs()

    @property
    def solves_exactly(self) -> bool:
        """Whether alpha, the share of exact solving, changes anything."""
        return False

    @property
    def is_plugged(self) -> bool:
        """Whether the policy is code of another package."""
        return False

    def try_out(self) -> None:  # noqa: B027 (ours work)
        """Raises ConfigError, before anything starts, for a policy of another package that would not work."""

    @abstractmethod
    def build(self, seed: int, backend: Backend) -> Policy:
        """Builds the policy; seed is for those that draw at random, backend for those that assign exactly."""


class NamedSpec(Spec):
    """A spec that is found in the registry by its name."""

    name: ClassVar[str]
    form: ClassVar[str]
    """How it may be written, with optional parts in brackets."""

    @classmethod
    @abstractmethod
    def parse(cls, parameters: Sequence[str]) -> "Spec | None":
        """The spec with these parameters; None if they do not have its form. Raises WrongParameter."""


class PlainSpec(NamedSpec):
    """A policy without parameters."""

    @classmethod
    def parse(cls, parameters: Sequence[str]) -> "Spec | None":
        return None if parameters else cls()

    def __str__(self) -> str:
        return self.name


def needs_of(alpha: float, elastic: bool, hot: bool) -> Needs:
    """What a policy needs that allows ``:elastic`` and ``:hot``."""
    return Needs(elastic=elastic, alpha=alpha, hot_share=HOT_SHARE if hot else 0.0, hot_by_cost=hot)


def split_last(parameters: Sequence[str], word: str) -> tuple[Sequence[str], bool]:
    """The parameters before the word if it is the last one, and whether it is."""
    is_last = bool(parameters) and parameters[-1] == word
    return (parameters[:-1] if is_last else parameters), is_last


def parse_number(written: str) -> float:
    """The number; NaN if it is not one, which no range contains."""
    try:
        return float(written)
    except ValueError:
        return float("nan")


def parse_alpha(written: str, example: str) -> float:
    """The share of exact solving; raises WrongParameter."""
    alpha = parse_number(written)
    if not 0.0 <= alpha <= 1.0:
        raise WrongParameter("alpha", written, "a number from 0 (all by Heu) to 1 (as exact as it gets)", example)
    return alpha


def parse_count(written: str) -> int:
    """The number; -1 unless it is a whole number from 0 on of at most 18 digits."""
    return int(written) if written.isascii() and written.isdecimal() and len(written) <= 18 else -1

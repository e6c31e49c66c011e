"""What all commands have in common: each answers the same six questions about itself.

1. ``parse``: what is its payload, given the worker and the value as text? So it is sent, and so it is on record.
2. ``check``: can it be carried out now? Only a command that is new is checked, never one on record.
3. ``str``: what is its value in normal form? That is written into the journal, and the command has happened.
4. ``effect``: what is wanted of the run afterwards? A pure function: reading the journal again comes to the same.
5. ``act``: what does it do at once? Everything else follows from what is wanted.
6. ``answer``: what has it come to, in words for people?
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, ClassVar, Self

from dispatch.commands.desired import Desired, ShareLimits
from dispatch.errors import CommandRefused
from dispatch.job import DispatchJob
from dispatch.peers.roster import Roster
from dispatch.placement.policies.registry import parse_spec
from dispatch.placement.policies.spec import Needs
from infra.base.process import Stop

if TYPE_CHECKING:  # loads kernels, and the control plane reads commands without any
    from dispatch.peers.crew import Crew

ShownValue = float | bool | str | ShareLimits | None
"""a value as those who look at it get it; None: the command sets nothing"""


@dataclass(frozen=True)
class CommandOrigin:
    """Who gave a command, why and when."""

    actor: str = ""
    reason: str = ""
    at_seconds: float = 0.0
    """since 1970, when it was carried out"""


@dataclass(frozen=True)
class CommandedRun:
    """The run that a command is given to, as far as a check looks at it."""

    job: DispatchJob
    roster: Roster
    desired: Desired
    """what is wanted so far"""

    @property
    def names(self) -> list[str]:
        """Of the workers that have joined."""
        return [member.name for member in self.roster.everyone]

    @property
    def policy(self) -> str:
        """The policy that is to decide."""
        return self.desired.policy or self.job.dispatch.policy

    @property
    def needs(self) -> Needs:
        """What that policy needs."""
        return parse_spec(self.policy).needs


@dataclass
class CommandTargets:
    """What a command may act on at once."""

    crew: "Crew"
    stop: Stop
    wants_checkpoint: bool = False
    """whether a checkpoint was asked for and has not been begun"""
    has_removed: bool = False
    """whether a worker was removed and no generation has started without it"""


class CommandSpec(ABC):
    """A command with its payload. Implementations are frozen dataclasses; ``str`` gives its value in normal form."""

    name: ClassVar[str]
    names_worker: ClassVar[bool] = False
    """whether it is about one worker"""
    expected: ClassVar[str] = ""
    """which values it takes, for people; empty: none"""
    is_for_stopping: ClassVar[bool] = False
    """whether a run that is stopping takes it"""

    @classmethod
    @abstractmethod
    def parse(cls, worker: str, value: str) -> Self:
        """Raises ValueError for a value of another kind. What has happened must stay readable, so no bounds here."""

    def __str__(self) -> str:
        return ""

    @property
    def about(self) -> str:
        """The worker that it is about; empty: it is for the whole run."""
        return ""

    @property
    def shown(self) -> ShownValue:
        """The value as those who look at it get it: a number is none of text."""
        return str(self) or None

    def check(self, run: CommandedRun) -> None:  # noqa: B027 (many can always be carried out)
        """Raises CommandRefused if the command cannot be carried out."""

    def effect(self, desired: Desired, origin: CommandOrigin) -> Desired:
        """What is wanted afterwards. Twice the same command comes to the same as once."""
        return desired

    def act(self, targets: CommandTargets, origin: CommandOrigin) -> None:  # noqa: B027 (most do nothing at once)
        """What the command does at once, after it has been written down."""

    @abstractmethod
    def answer(self, step: int) -> str:
        """What it has come to, for people; step: the newest."""


@dataclass(frozen=True)
class PlainCommand(CommandSpec):
    """One without a payload."""

    @classmethod
    def parse(cls, worker: str, value: str) -> Self:
        return cls()


@dataclass(frozen=True)
class WorkerCommand(CommandSpec):
    """One about a worker."""

    names_worker = True

    worker: str

    @classmethod
    def parse(cls, worker: str, value: str) -> Self:
        return cls(worker)

    @property
    def about(self) -> str:
        return self.worker

    def check(self, run: CommandedRun) -> None:
        if self.worker not in run.names:
            raise CommandRefused(
                f"there is no worker {self.worker!r}; expected one of {', '.join(sorted(run.names)) or 'none'}"
            )


def wrong_value(command: type[CommandSpec], written: str) -> CommandRefused:
    """The refusal of a value that the command does not take."""
    return CommandRefused(f"{command.name} cannot be {written!r}; expected {command.expected}")


def is_within(number: float, least: float, largest: float) -> bool:
    """Whether a number is finite, and from the least to the largest."""
    return isfinite(number) and least <= number <= largest

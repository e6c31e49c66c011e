"""What all commands have in common: each one implements the same six operations.

1. ``parse``: reads the payload from the worker's name and the value as text, the form in which it is sent and recorded.
2. ``check``: decides whether the command can be carried out now. Only new commands are checked, never recorded ones.
3. ``str``: returns the value in normal form. Once this is written to the journal, the command has happened.
4. ``effect``: returns the desired state after the command. It is a pure function: replaying the journal repeats it.
5. ``act``: does what must happen at once. Everything else follows from the desired state.
6. ``answer``: says what was done, in words for people.
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

if TYPE_CHECKING:  # importing it loads kernels, and the control plane reads commands without any
    from dispatch.peers.crew import Crew

ShownValue = float | bool | str | ShareLimits | None
"""A value as it is shown to users; None if the command sets nothing."""


@dataclass(frozen=True)
class CommandOrigin:
    """Who gave a command, why and when."""

    actor: str = ""
    reason: str = ""
    at_seconds: float = 0.0
    """When it was carried out, in seconds since 1970."""


@dataclass(frozen=True)
class CommandedRun:
    """The parts of a run that the check of a command needs."""

    job: DispatchJob
    roster: Roster
    desired: Desired
    """The desired state before this command."""

    @property
    def names(self) -> list[str]:
        """Names of the workers that have joined."""
        return [member.name for member in self.roster.everyone]

    @property
    def policy(self) -> str:
        """The desired policy."""
        return self.desired.policy or self.job.dispatch.policy

    @property
    def needs(self) -> Needs:
        """The needs of that policy."""
        return parse_spec(self.policy).needs


@dataclass
class CommandTargets:
    """The parts of a dispatcher that a command may act on at once."""

    crew: "Crew"
    stop: Stop
    wants_checkpoint: bool = False
    """Whether a checkpoint was requested and has not been begun."""
    has_removed: bool = False
    """Whether a worker was removed and no generation has started without it."""


class CommandSpec(ABC):
    """A command with its payload. Implementations are frozen dataclasses; ``str`` returns the value in normal form."""

    name: ClassVar[str]
    names_worker: ClassVar[bool] = False
    """Whether the command is about one worker."""
    expected: ClassVar[str] = ""
    """The values that it accepts, in words for people; empty if none."""
    is_for_stopping: ClassVar[bool] = False
    """Whether a run that is stopping accepts the command."""

    @classmethod
    @abstractmethod
    def parse(cls, worker: str, value: str) -> Self:
        """Raises ValueError for a value of the wrong type. Bounds are not checked: recorded commands must stay
        readable.
        """

    def __str__(self) -> str:
        return ""

    @property
    def about(self) -> str:
        """Name of the worker that the command is about; empty if it is for the whole run."""
        return ""

    @property
    def shown(self) -> ShownValue:
        """The value as it is shown to users, typed: a number is a number and not text."""
        return str(self) or None

    @property
    def names_plugin(self) -> bool:
        """Whether the run would execute code of another package; over REST only a setting allows it."""
        return False

    def check(self, run: CommandedRun) -> None:  # noqa: B027 (many can always be carried out)
        """Raises CommandRefused if the command cannot be carried out."""

    def effect(self, desired: Desired, origin: CommandOrigin) -> Desired:
        """Returns the desired state after the command. Applying a command twice has the same effect as once."""
        return desired

    def act(self, targets: CommandTargets, origin: CommandOrigin) -> None:  # noqa: B027 (most do nothing at once)
        """Does what the command does at once, after it has been recorded."""

    @abstractmethod
    def answer(self, step: int) -> str:
        """Returns the answer for people; step: the newest step."""


@dataclass(frozen=True)
class PlainCommand(CommandSpec):
    """A command without a payload."""

    @classmethod
    def parse(cls, worker: str, value: str) -> Self:
        return cls()


@dataclass(frozen=True)
class WorkerCommand(CommandSpec):
    """A command about one worker."""

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
    """Returns the refusal of a value that the command does not accept."""
    return CommandRefused(f"{command.name} cannot be {written!r}; expected {command.expected}")


def is_within(number: float, least: float, largest: float) -> bool:
    """Whether a number is finite and between the least and the largest, inclusive."""
    return isfinite(number) and least <= number <= largest

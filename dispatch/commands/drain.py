"""drain and remove: a worker leaves in an orderly way, or is excluded at once."""

from dataclasses import dataclass

import msgspec

from dispatch.commands.desired import Desired, with_name
from dispatch.commands.spec import CommandedRun, CommandOrigin, CommandTargets, WorkerCommand
from dispatch.errors import CommandRefused


@dataclass(frozen=True)
class LeavingCommand(WorkerCommand):
    """A command after which a worker no longer takes part."""

    def check(self, run: CommandedRun) -> None:
        super().check(run)
        if not [name for name in run.names if name != self.worker and not run.roster.is_leaving(name)]:
            raise CommandRefused(f"worker {self.worker!r} is the last one; expected another that stays; add one first")


@dataclass(frozen=True)
class DrainCommand(LeavingCommand):
    """The worker leaves after a checkpoint, at a step boundary."""

    name = "drain"

    def effect(self, desired: Desired, origin: CommandOrigin) -> Desired:
        return msgspec.structs.replace(desired, draining=with_name(desired.draining, self.worker))

    def act(self, targets: CommandTargets, origin: CommandOrigin) -> None:
        targets.crew.roster.drain(self.worker)

    def answer(self, step: int) -> str:
        return f"worker {self.worker} leaves after step {step}"


@dataclass(frozen=True)
class RemoveCommand(LeavingCommand):
    """The worker is excluded at once, whatever it is doing, and the others recover."""

    name = "remove"

    def effect(self, desired: Desired, origin: CommandOrigin) -> Desired:
        return msgspec.structs.replace(desired, removed=with_name(desired.removed, self.worker))

    def act(self, targets: CommandTargets, origin: CommandOrigin) -> None:
        targets.crew.remove(self.worker)
        targets.has_removed = True

    def answer(self, step: int) -> str:
        return f"worker {self.worker} is removed; the others go back to the last checkpoint"

"""stop: the run ends in order, with a checkpoint, and can be resumed."""

from dataclasses import dataclass

import msgspec

from dispatch.commands.desired import Desired
from dispatch.commands.spec import CommandOrigin, CommandTargets, PlainCommand

STOPPED = "stopped"
"""verb of the record of a stop that is done with, though nothing was trained that could be saved; nobody can give it"""


@dataclass(frozen=True)
class StopCommand(PlainCommand):
    """Wanted until the run has stopped, so a dispatcher that dies meanwhile stops when it is started again."""

    name = "stop"
    is_for_stopping = True

    def effect(self, desired: Desired, origin: CommandOrigin) -> Desired:
        return msgspec.structs.replace(desired, is_stopping=True)

    def act(self, targets: CommandTargets, origin: CommandOrigin) -> None:
        targets.stop.request(f"stopped by {origin.actor}" if origin.actor else "stopped by a command")

    def answer(self, step: int) -> str:
        return f"stops after step {step}"

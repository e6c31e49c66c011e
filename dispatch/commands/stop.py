"""stop: ends the run in an orderly way, with a checkpoint; it can be resumed."""

from dataclasses import dataclass

import msgspec

from dispatch.commands.desired import Desired
from dispatch.commands.spec import CommandOrigin, CommandTargets, PlainCommand

STOPPED = "stopped"
"""Verb of the record that a stop is complete although there was nothing to save; it cannot be sent as a command."""


@dataclass(frozen=True)
class StopCommand(PlainCommand):
    """In force until the run has stopped: a dispatcher that dies before that stops when it is started again."""

    name = "stop"
    is_for_stopping = True

    def effect(self, desired: Desired, origin: CommandOrigin) -> Desired:
        return msgspec.structs.replace(desired, is_stopping=True)

    def act(self, targets: CommandTargets, origin: CommandOrigin) -> None:
        targets.stop.request(f"stopped by {origin.actor}" if origin.actor else "stopped by a command")

    def answer(self, step: int) -> str:
        return f"stops after step {step}"

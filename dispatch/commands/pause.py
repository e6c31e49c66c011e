"""pause and resume: no batch is begun between the two."""

from dataclasses import dataclass

import msgspec

from dispatch.commands.desired import Desired
from dispatch.commands.spec import CommandOrigin, PlainCommand


@dataclass(frozen=True)
class PauseCommand(PlainCommand):
    """Steps under way are completed, and a checkpoint is taken."""

    name = "pause"

    def effect(self, desired: Desired, origin: CommandOrigin) -> Desired:
        return msgspec.structs.replace(desired, is_paused=True)

    def answer(self, step: int) -> str:
        return f"paused after step {step}"


@dataclass(frozen=True)
class ResumeCommand(PlainCommand):
    """Ends a pause, no matter who began it."""

    name = "resume"

    def effect(self, desired: Desired, origin: CommandOrigin) -> Desired:
        return msgspec.structs.replace(desired, is_paused=False)

    def answer(self, step: int) -> str:
        return f"goes on after step {step}"

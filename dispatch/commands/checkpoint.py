"""checkpoint: the model is saved now."""

from dataclasses import dataclass

from dispatch.commands.spec import CommandOrigin, CommandTargets, PlainCommand


@dataclass(frozen=True)
class CheckpointCommand(PlainCommand):
    """A request that is lost with its dispatcher: the next one takes a checkpoint when it is time for one."""

    name = "checkpoint"

    def act(self, targets: CommandTargets, origin: CommandOrigin) -> None:
        targets.wants_checkpoint = True

    def answer(self, step: int) -> str:
        return f"a checkpoint is taken after step {step}"

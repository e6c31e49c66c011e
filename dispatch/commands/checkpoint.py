"""checkpoint: save the model now."""

from dataclasses import dataclass

from dispatch.commands.spec import CommandOrigin, CommandTargets, PlainCommand


@dataclass(frozen=True)
class CheckpointCommand(PlainCommand):
    """A request that is lost if its dispatcher dies: the next dispatcher takes a checkpoint when one is due."""

    name = "checkpoint"

    def act(self, targets: CommandTargets, origin: CommandOrigin) -> None:
        targets.wants_checkpoint = True

    def answer(self, step: int) -> str:
        return f"a checkpoint is taken after step {step}"

"""deadline: whether decisions that would take longer than a step are cut short."""

from dataclasses import dataclass
from typing import Self

import msgspec

from dispatch.commands.desired import Desired
from dispatch.commands.spec import CommandOrigin, CommandSpec

WRITTEN = {"true": True, "false": False}


@dataclass(frozen=True)
class DeadlineCommand(CommandSpec):
    """Takes effect from the next decided step on."""

    name = "deadline"
    expected = " or ".join(WRITTEN)

    is_on: bool

    @classmethod
    def parse(cls, worker: str, value: str) -> Self:
        if value not in WRITTEN:
            raise ValueError(value)
        return cls(WRITTEN[value])

    def __str__(self) -> str:
        return str(self.is_on).lower()

    @property
    def shown(self) -> bool:
        return self.is_on

    def effect(self, desired: Desired, origin: CommandOrigin) -> Desired:
        return msgspec.structs.replace(desired, deadline=self.is_on)

    def answer(self, step: int) -> str:
        return f"decisions are {'' if self.is_on else 'not '}cut short to be in time from step {step + 1} on"

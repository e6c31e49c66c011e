"""skip_above: sets the lag in events above which the oldest ones are skipped."""

from dataclasses import dataclass
from typing import Self

import msgspec

from dispatch.commands.desired import NONE, Desired
from dispatch.commands.spec import CommandedRun, CommandOrigin, CommandSpec, ShownValue, wrong_value

MOST_EVENTS = 10**15


@dataclass(frozen=True)
class SkipAboveCommand(CommandSpec):
    """Takes effect from the next batch on."""

    name = "skip_above"
    expected = f"a whole number from 1 to {MOST_EVENTS}, or {NONE}"

    events: int | None
    """The most events that may wait; None if no event is skipped."""

    @classmethod
    def parse(cls, worker: str, value: str) -> Self:
        if value == NONE:
            return cls(None)
        if not (value.isascii() and value.isdecimal()):
            raise ValueError(value)
        return cls(int(value))

    def __str__(self) -> str:
        return NONE if self.events is None else str(self.events)

    @property
    def shown(self) -> ShownValue:
        return NONE if self.events is None else self.events

    def check(self, run: CommandedRun) -> None:
        if self.events is not None and not 1 <= self.events <= MOST_EVENTS:
            raise wrong_value(type(self), str(self))

    def effect(self, desired: Desired, origin: CommandOrigin) -> Desired:
        return msgspec.structs.replace(desired, skip_above=str(self))

    def answer(self, step: int) -> str:
        return "no events are left out" if self.events is None else f"events are left out when more than {self} wait"

"""link: sets the speed of a worker's link."""

from dataclasses import dataclass
from typing import Self

import msgspec

from dispatch.commands.desired import Desired
from dispatch.commands.spec import CommandedRun, CommandOrigin, ShownValue, WorkerCommand, is_within, wrong_value

FASTEST_GBIT = 1e6
UNKNOWN = "unknown"
"""How an unknown speed is shown and may be given; the journal stores it as 0."""


@dataclass(frozen=True)
class LinkCommand(WorkerCommand):
    """Takes effect from the next decided step on."""

    name = "link"
    expected = f"Gbit/s from 0 to {FASTEST_GBIT:g}, or {UNKNOWN}"

    gbit: float
    """Speed in Gbit/s; 0 if not known."""

    @classmethod
    def parse(cls, worker: str, value: str) -> Self:
        return cls(worker, 0.0 if value == UNKNOWN else float(value))

    def __str__(self) -> str:
        return f"{self.gbit:g}"

    @property
    def shown(self) -> ShownValue:
        return self.gbit or UNKNOWN

    def check(self, run: CommandedRun) -> None:
        super().check(run)
        if not is_within(self.gbit, 0.0, FASTEST_GBIT):
            raise wrong_value(type(self), str(self))

    def effect(self, desired: Desired, origin: CommandOrigin) -> Desired:
        return msgspec.structs.replace(desired, links={**desired.links, self.worker: self.gbit})

    def answer(self, step: int) -> str:
        speed = f"{self} Gbit/s" if self.gbit else UNKNOWN
        return f"the link of worker {self.worker} counts as {speed} from step {step + 1} on"

"""link: sets the speed of a worker's link."""

from dataclasses import dataclass
from typing import Self

import msgspec

from dispatch.commands.desired import Desired
from dispatch.commands.spec import CommandedRun, CommandOrigin, ShownValue, WorkerCommand, is_within, wrong_value
from infra.base.link_gbit import LinkGbit

FASTEST_GBIT = 1e6
UNKNOWN = "unknown"
"""How an unknown speed is shown and may be given; the journal stores it as 0."""


@dataclass(frozen=True)
class LinkCommand(WorkerCommand):
    """Takes effect from the next decided step on."""

    name = "link"
    expected = f"Gbit/s from 0 to {FASTEST_GBIT:g}, DOWN/UP if the uplink has another speed, or {UNKNOWN}"

    gbit: float
    """Speed in Gbit/s; 0 if not known."""
    uplink_gbit: float = 0.0
    """Speed of the uplink; 0: as fast as the link."""

    @classmethod
    def parse(cls, worker: str, value: str) -> Self:
        link = LinkGbit(0.0, 0.0) if value == UNKNOWN else LinkGbit.parse(value)
        return cls(worker, link.down, link.own_uplink)

    def __str__(self) -> str:
        return str(LinkGbit.of(self.gbit, self.uplink_gbit))

    @property
    def shown(self) -> ShownValue:
        return str(self) if self.uplink_gbit else self.gbit or UNKNOWN

    def check(self, run: CommandedRun) -> None:
        super().check(run)
        speeds = self.gbit, self.uplink_gbit
        is_uplink_alone = self.uplink_gbit and not self.gbit
        if is_uplink_alone or not all(is_within(speed, 0.0, FASTEST_GBIT) for speed in speeds):
            raise wrong_value(type(self), str(self))

    def effect(self, desired: Desired, origin: CommandOrigin) -> Desired:
        uplinks = {name: gbit for name, gbit in desired.uplinks.items() if name != self.worker}
        if self.uplink_gbit:
            uplinks[self.worker] = self.uplink_gbit
        return msgspec.structs.replace(desired, links={**desired.links, self.worker: self.gbit}, uplinks=uplinks)

    def answer(self, step: int) -> str:
        speed = f"{self} Gbit/s" if self.gbit else UNKNOWN
        return f"the link of worker {self.worker} counts as {speed} from step {step + 1} on"

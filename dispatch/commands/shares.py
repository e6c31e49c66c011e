"""shares: bounds how much of a batch a worker may get, where capacities are elastic."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import msgspec

from dispatch.commands.desired import Desired, ShareLimits
from dispatch.commands.spec import CommandedRun, CommandOrigin, ShownValue, WorkerCommand
from dispatch.errors import CommandRefused, DispatchError
from dispatch.placement.capacity.bounds import ShareBounds
from dispatch.placement.capacity.room import check_cache
from dispatch.placement.errors import PlacementError
from infra.base.errors import ConfigError


@dataclass(frozen=True)
class SharesCommand(WorkerCommand):
    """Takes effect from the next decided step on."""

    name = "shares"
    expected = "LEAST:LARGEST in equal shares of the batch, as in 0.5:2"

    limits: ShareLimits

    @classmethod
    def parse(cls, worker: str, value: str) -> Self:
        least, largest = value.split(":")
        return cls(worker, ShareLimits(float(least), float(largest)))

    def __str__(self) -> str:
        return f"{self.limits.least:g}:{self.limits.largest:g}"

    @property
    def shown(self) -> ShownValue:
        return self.limits

    def check(self, run: CommandedRun) -> None:
        super().check(run)
        if not run.needs.elastic:
            raise CommandRefused(
                f"shares cannot be bounded: policy {run.policy!r} gives all workers equal shares; expected one that "
                "ends in :elastic; set another policy first"
            )
        job = run.job
        names = [member.name for member in run.roster.members] or run.names
        try:
            bounds = wanted_bounds(job.dispatch.share_bounds, self.effect(run.desired, CommandOrigin()), names)
            check_cache(job.dispatch.cache_rows, job.stream.batch, len(names), job.schema.fields, bounds)
        except (ConfigError, DispatchError, PlacementError) as error:
            raise CommandRefused(f"shares stay as they are: {error}") from error

    def effect(self, desired: Desired, origin: CommandOrigin) -> Desired:
        return msgspec.structs.replace(desired, shares={**desired.shares, self.worker: self.limits})

    def answer(self, step: int) -> str:
        return f"worker {self.worker} gets {self} equal shares of a batch from step {step + 1} on"


def wanted_bounds(configured: ShareBounds, desired: Desired, names: Sequence[str]) -> ShareBounds:
    """Returns the share bounds of these workers; raises ConfigError if they cannot hold a batch."""
    least_n, largest_n = (list(map(float, shares)) for shares in configured.of(len(names)))
    for number, name in enumerate(names):
        if (own := desired.shares.get(name)) is not None:
            least_n[number] = own.least
            largest_n[number] = own.largest
    bounds = ShareBounds(tuple(least_n), tuple(largest_n))
    bounds.check(len(names))
    return bounds

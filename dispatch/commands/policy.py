"""policy: sets another policy to decide which worker trains which sample."""

from dataclasses import dataclass, replace
from typing import Self

import msgspec

from dispatch.commands.desired import Desired
from dispatch.commands.spec import CommandedRun, CommandOrigin, CommandSpec
from dispatch.errors import CommandRefused, DispatchError
from dispatch.job import check_job
from dispatch.placement.errors import PlacementError
from dispatch.placement.policies.registry import parse_spec
from infra.base.errors import ConfigError


@dataclass(frozen=True)
class PolicyCommand(CommandSpec):
    """Takes effect from the next decided step on, with a new generation if the policy needs another setup."""

    name = "policy"
    expected = "a policy as in dispatch.policy"

    policy: str
    """The policy as it was given; a recorded one is in normal form, and this release may not know it."""

    @classmethod
    def parse(cls, worker: str, value: str) -> Self:
        return cls(value)

    def __str__(self) -> str:
        return str(parse_spec(self.policy))

    @property
    def shown(self) -> str:
        return self.policy

    def check(self, run: CommandedRun) -> None:
        try:
            spec = parse_spec(self.policy)
            spec.try_out()
            workers = max(run.job.dispatch.workers, len(run.names))
            update = {"policy": str(spec), "workers": workers}
            asked = replace(run.job, dispatch=run.job.dispatch.model_copy(update=update))
            check_job(asked, spec.needs)
        except (ConfigError, DispatchError, PlacementError) as error:
            raise CommandRefused(f"the policy stays as it is: {error}") from error

    @property
    def names_plugin(self) -> bool:
        return parse_spec(self.policy).is_plugged

    def effect(self, desired: Desired, origin: CommandOrigin) -> Desired:
        return msgspec.structs.replace(desired, policy=self.policy)

    def answer(self, step: int) -> str:
        return f"policy {self} decides from step {step + 1} on"

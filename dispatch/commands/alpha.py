"""alpha: an operator sets the share of exact solving, or returns it to the dispatcher."""

from dataclasses import dataclass
from typing import Self

import msgspec

from dispatch.commands.desired import AUTO, Desired
from dispatch.commands.spec import CommandedRun, CommandOrigin, CommandSpec, ShownValue, is_within, wrong_value
from dispatch.errors import CommandRefused


@dataclass(frozen=True)
class AlphaCommand(CommandSpec):
    """Takes effect from the next decided step on."""

    name = "alpha"
    expected = f"a number from 0 to 1, or {AUTO}"

    alpha: float | None
    """The share of exact solving; None if the dispatcher chooses it."""

    @classmethod
    def parse(cls, worker: str, value: str) -> Self:
        return cls(None if value == AUTO else float(value))

    def __str__(self) -> str:
        return AUTO if self.alpha is None else f"{self.alpha:g}"

    @property
    def shown(self) -> ShownValue:
        return AUTO if self.alpha is None else self.alpha

    def check(self, run: CommandedRun) -> None:
        if self.alpha is None:
            return
        if not is_within(self.alpha, 0.0, 1.0):
            raise wrong_value(type(self), str(self))
        most = run.needs.alpha
        if self.alpha > most:
            raise CommandRefused(
                f"alpha cannot be {self}: policy {run.policy!r} has {most:g}, the most that it solves exactly; "
                "expected no more than that; set a policy with more first"
            )

    def effect(self, desired: Desired, origin: CommandOrigin) -> Desired:
        return msgspec.structs.replace(
            desired,
            is_auto=self.alpha is None,
            alpha=self.alpha,
            alpha_reason=origin.reason,
            alpha_at=origin.at_seconds,
        )

    def answer(self, step: int) -> str:
        alpha = "alpha follows contention" if self.alpha is None else f"alpha is {self}"
        return f"{alpha} from step {step + 1} on"

"""Runs whose dispatcher ends at an exact point, and replays of runs."""

from collections.abc import Callable
from typing import Any

import pytest

from dispatch.coordinator import Coordinator
from tests.end_to_end.threads import Plan, train


class Crash(Exception):
    """The dispatcher ends here, as if it had been killed."""


def interrupt(plan: Plan, step: int, after: str = "order") -> None:
    """Runs until a step in which the dispatcher ends after that verb of its loop."""
    verb: Callable[..., Any] = getattr(Coordinator, after)

    def crash(coordinator: Coordinator, *arguments: Any, **named: Any) -> Any:
        done = verb(coordinator, *arguments, **named)
        if coordinator.intake.step == step and coordinator.state == "training":
            raise Crash
        return done

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Coordinator, after, crash)
        with pytest.raises(Crash):
            train(plan)


def golden(plan: Plan, **changes: Any) -> Plan:
    """The same run again from its journal, in a folder of its own."""
    return Plan(**{**vars(plan), "folder": plan.folder.parent / "golden", "golden": plan.folder, **changes})

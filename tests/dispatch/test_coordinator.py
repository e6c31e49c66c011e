"""Waiting for rows that are written back: for as long as they may take, in touch with everybody, and no longer."""

from types import SimpleNamespace
from typing import Any

import pytest

from dispatch.coordinator import Coordinator
from dispatch.errors import ShardSilent
from ps.phases import FLUSH


def waiting(applied_after: int | None, is_stopping: bool = False) -> Any:
    """Stands in for a coordinator whose shards have applied a round after so many questions; None: never."""
    asked: list[int] = []

    def have_applied(*_: int) -> bool:
        asked.append(len(asked))
        return applied_after is not None and len(asked) > applied_after

    polled: list[float] = []
    return SimpleNamespace(
        connections=SimpleNamespace(shards=SimpleNamespace(have_applied=have_applied)),
        crew=SimpleNamespace(generation=1),
        stop=SimpleNamespace(requested=is_stopping),
        poll=polled.append,
        polled=polled,
        _patience_seconds=0.05,
    )


def test_messages_are_handled_until_every_push_has_been_applied() -> None:
    coordinator = waiting(applied_after=3)
    Coordinator._await_applied(coordinator, 7, FLUSH)
    assert len(coordinator.polled) == 3


@pytest.mark.parametrize(("is_stopping", "setting"), [(False, "report"), (True, "drain")])
def test_rows_that_do_not_arrive_in_time_are_told_with_the_setting_to_raise(is_stopping: bool, setting: str) -> None:
    with pytest.raises(ShardSilent, match=f"after 0.05 s.*raise dispatch.{setting}_seconds if links are that slow"):
        Coordinator._await_applied(waiting(None, is_stopping), 7, FLUSH)

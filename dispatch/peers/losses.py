"""Who is lost: cannot be reached, was replaced or removed, or made others wait in vain. Names the cause."""

from collections.abc import Sequence
from time import monotonic

from dispatch.errors import CrewFailed

LOST_SECONDS = 1.0
"""How long a member may be unreachable before that is an error: until then its own message may explain more."""


class Losses:
    """The losses of one generation, by worker name."""

    def __init__(self) -> None:
        self._heard: set[int] = set()
        """Numbers of the members that have sent anything in this generation."""
        self._lost: dict[str, float] = {}
        """Since when each is lost."""
        self._gave_up: dict[str, float] = {}
        """Members that waited for others in vain, and since when."""

    def hear(self, number: int) -> None:
        """Notes that the member with that number has sent something."""
        self._heard.add(number)

    def blamed(self, missing: Sequence[int]) -> list[int]:
        """Numbers of the members to blame for missing reports: those that were never heard in this generation, if any.

        The others may be waiting for these.
        """
        return sorted(set(missing) - self._heard) or sorted(missing)

    def __contains__(self, name: str) -> bool:
        return name in self._lost

    def add(self, name: str) -> None:
        """Notes that a worker cannot be reached."""
        self._lost.setdefault(name, monotonic())

    def add_for_good(self, name: str) -> None:
        """Notes that a worker is no longer part of the generation, whatever it sends."""
        self._lost[name] = monotonic() - LOST_SECONDS - 1

    def give_up(self, name: str) -> None:
        """Notes that a worker has waited in vain."""
        self._gave_up.setdefault(name, monotonic())

    def clear(self) -> None:
        self._heard.clear()
        self._lost.clear()
        self._gave_up.clear()

    @property
    def are_certain(self) -> bool:
        """Whether a process has been lost, or has waited in vain, for a while."""
        until = monotonic() - LOST_SECONDS
        return any(since < until for since in (*self._lost.values(), *self._gave_up.values()))

    def cause(self, awaited: Sequence[str], silence_seconds: float) -> CrewFailed:
        """The error that names who is to blame; awaited: members that others may have waited for."""
        if causes := [name for name in self._lost if name not in self._gave_up]:
            return lost([f"worker {name}" for name in causes], silence_seconds)
        return waited_for([name for name in awaited if name not in self._gave_up], sorted(self._gave_up))


def silent(names: list[str], seconds: float) -> CrewFailed:
    return CrewFailed(
        f"no report from worker {', '.join(names)} for {seconds:g} s; expected one per step; see their logs, and raise "
        "dispatch.report_seconds if steps really take that long"
    )


def lost(names: list[str], seconds: float) -> CrewFailed:
    return CrewFailed(
        f"lost {', '.join(names)}: it ended, or gave no sign of life for {seconds:g} s; expected it to stay "
        "until it is dismissed; see its log and whether its machine can be reached, or raise dispatch.silence_seconds"
    )


def waited_for(names: list[str], waiting: list[str]) -> CrewFailed:
    return CrewFailed(
        f"worker {', '.join(waiting)} waited in vain for worker {', '.join(names) or 'unknown'}; expected every worker "
        "of the generation to take part; see its log and whether it runs, or raise the time limits of [trainer]"
    )

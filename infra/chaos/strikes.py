"""What is done to a run, and when: drawn from a seed, so that a run of chaos can be repeated."""

from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Literal

import msgspec

Kind = Literal["kill", "stop"]
Target = Literal["worker", "ps", "dispatcher", "supervisor", "nursery", "serve", "api"]
WEIGHTS: dict[Target, float] = {
    "worker": 4,
    "ps": 3,
    "dispatcher": 2,
    "supervisor": 1,
    "nursery": 0.5,
    "serve": 1,
    "api": 0.5,
}
"""How often each kind of process is struck, relative to the others."""
STOPS = 0.3
"""Share of strikes that stop a process for a while; the others kill it."""
LEAST_STOPPED_SECONDS = 1.0
MOST_STOPPED_SECONDS = 20.0


class Strike(msgspec.Struct, frozen=True):
    """One planned fault."""

    pause_seconds: float
    """Pause after the one before."""
    kind: Kind
    target: Target
    place: float
    """Which of several processes of this kind, from 0 to 1."""
    stopped_seconds: float
    """How long a stopped process stays stopped."""

    def choose(self, names: Iterable[str]) -> str | None:
        """One of the processes that may be struck; None if none is of this kind."""
        found = sorted(name for name in names if name.partition("-")[0] == self.target)
        return found[int(self.place * len(found))] if found else None


def draw_strikes(
    seed: int,
    every_seconds: float,
    most_stopped_seconds: float = MOST_STOPPED_SECONDS,
    targets: Sequence[Target] = tuple(WEIGHTS),
) -> Iterator[Strike]:
    """An endless sequence; pauses are between half and one and a half of that long. No strikes if it is 0.

    The first strikes are one of every kind of process, in random order, about half of them stops, so that a short run
    of chaos covers all kinds. Those that follow are drawn one by one, by weight.
    """
    random = Random(seed)
    first = deal_first(random, targets)
    weights = [WEIGHTS[target] for target in targets]
    while every_seconds > 0:
        pause = random.uniform(0.5, 1.5) * every_seconds
        kind: Kind = "stop" if random.random() < STOPS else "kill"
        (target,) = random.choices(targets, weights)
        if first:
            target, kind = first.pop()
        stopped = random.uniform(LEAST_STOPPED_SECONDS, max(LEAST_STOPPED_SECONDS, most_stopped_seconds))
        yield Strike(pause, kind, target, random.random(), stopped)


def deal_first(random: Random, targets: Sequence[Target]) -> list[tuple[Target, Kind]]:
    """Every kind of process once; which of them are killed and which stopped is drawn, too."""
    kinds: list[Kind] = [("kill", "stop")[number % 2] for number in range(len(targets))]
    shuffled = list(targets)
    random.shuffle(shuffled)
    random.shuffle(kinds)
    return list(zip(shuffled, kinds, strict=True))


class Struck(msgspec.Struct, frozen=True):
    """One fault that was injected: a line of chaos.jsonl."""

    at_seconds: float
    """Time, in seconds since 1970."""
    kind: Kind
    process: str
    pid: int
    stopped_seconds: float | None = None
    """How long a stopped process was stopped."""

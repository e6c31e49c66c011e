"""Tracks where the dense weights are, and which of them move in each step.

There are two ways. With the *hub* the shards hold them: a worker with samples in a step pulls them before it and pushes
its gradient after it; a worker without samples moves nothing. A worker that trains alone, because it is the only one or
all others are parked, owns them: it pulls weights and optimizer state once, updates them itself, and pushes them back
when others take part again, or at the flush. With a *ring* every worker holds them and an all-reduce sums the
gradients; the first worker writes them to the shards at the flush, so that there is one place to read them from. Thus
they behave like one more row: on the shards, owned by one worker, or split.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from infra.base.errors import ConfigError
from ps.protocol import BARE, NO_DENSE, WHOLE

Reduce = Literal["auto", "hub", "ring", "gloo", "nccl"]
MOST_DENSE_BYTES = 1 << 34
"""Most bytes that a worker moves in one round in one direction: the size of the largest frame."""


@dataclass(frozen=True)
class DenseMoves:
    """The dense weights and gradients that move in one step or flush, by worker number."""

    giver: int | None = None
    """The worker that pushes all weights and their optimizer state before anyone pulls; None if nobody does."""
    pullers: tuple[int, ...] = ()
    pull_form: int = NO_DENSE
    gradients: tuple[int, ...] = ()
    """Workers that push a gradient after training."""
    in_ring: bool = False
    """Whether gradients are all-reduced among workers, so that none reach a shard."""
    are_all_ordered: bool = False
    """Whether every member gets an order, even an empty one: in a ring nobody can proceed without the others."""

    def involve(self, worker: int) -> bool:
        """Whether a worker needs an order because of these moves."""
        return self.are_all_ordered or worker == self.giver or worker in self.pullers or worker in self.gradients

    def pulled_by(self, worker: int) -> int:
        """Returns the form in which a worker pulls the dense weights."""
        return self.pull_form if worker in self.pullers else NO_DENSE

    def most_bytes(self, worker: int) -> tuple[int, int]:
        """Returns the most bytes that a worker can have sent and received of them."""
        up = worker == self.giver or worker in self.gradients or self.in_ring
        down = worker in self.pullers or self.in_ring
        return MOST_DENSE_BYTES * up, MOST_DENSE_BYTES * down


NO_MOVES = DenseMoves()


class DenseTurns:
    """Tracks the dense weights through a run, which begins with the initial values of the first member."""

    def __init__(self, are_on_shards: bool = False) -> None:
        self._owner: int | None = None if are_on_shards else 0
        """The only worker with the newest weights; in a ring, the first of all that have them. None: the shards."""
        self._flushed: int | None = None
        """The worker that has the newest weights as well as the shards do, because it has just pushed them."""
        self._workers = 0
        self._hub = False

    def start_generation(self, workers: int, hub: bool) -> bool:
        """Returns whether the first member must take the dense weights from the shards before it can begin."""
        self._workers = workers
        self._hub = hub
        self._flushed = None
        return not hub and self._owner is None

    def train(self, samples: Sequence[int], sole: int | None = None) -> DenseMoves:
        """Returns what moves in the next step.

        samples: number of samples of each worker. sole: the worker that trains alone, for many steps.
        """
        if not self._hub:
            self._owner = 0
            return DenseMoves(in_ring=self._workers > 1, are_all_ordered=True)
        sole = 0 if self._workers == 1 else sole
        giver, self._owner = self._owner, sole
        flushed, self._flushed = self._flushed, None
        if sole is None:
            trains = tuple(worker for worker, count in enumerate(samples) if count)
            return DenseMoves(giver, trains, BARE, trains)
        return NO_MOVES if sole in (giver, flushed) else DenseMoves(giver, (sole,), WHOLE)

    def flush(self) -> DenseMoves:
        """Returns what moves in a flush; after it the shards have the newest weights."""
        giver, self._owner = self._owner, None
        self._flushed = giver if giver is not None else self._flushed
        return DenseMoves(giver, are_all_ordered=not self._hub)


def needs_ring(reduce: Reduce, has_hot_set: bool) -> bool:
    """Whether the settings require a ring; the replicated rows of a hot set are summed there, too."""
    return has_hot_set or reduce not in ("auto", "hub")


def uses_hub(reduce: Reduce, has_hot_set: bool, may_sum: bool, devices: Sequence[str]) -> bool:
    """Whether a generation of workers on these devices uses the hub; an empty name: no device that NCCL can use."""
    if needs_ring(reduce, has_hot_set):
        return False
    has_nccl = len(devices) > 1 and "" not in devices and len(set(devices)) == len(devices)
    return reduce == "hub" or not (has_nccl and may_sum)


def check_reduce(reduce: Reduce, policy: str, has_hot_set: bool) -> None:
    """Raises ConfigError if the policy needs a ring and the settings exclude it."""
    if reduce == "hub" and has_hot_set:
        raise ConfigError(
            f"policy {policy} replicates rows, whose gradients workers sum among themselves, and trainer.reduce is "
            "'hub'; expected a ring; set trainer.reduce to 'auto' or 'ring', or choose another policy"
        )

"""The barrier and the fence of a shard.

The barrier knows which round is next, whose pushes it still waits for, and which pulls wait for it. The fence refuses
messages from anyone who does not belong to the generation.

Workers and the dispatcher use different sockets, so a push or a pull may arrive before the round it belongs to is
announced. It is held, up to a total size. Rounds are applied in announced order, each once all its announced pushers
have pushed exactly the rows that were announced for them.
"""

from collections import deque
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from infra.base.errors import Fenced
from infra.base.wire import Header
from ps.config import HELD_BYTES
from ps.errors import OutOfOrder
from ps.fingerprints import fingerprint
from ps.protocol import (
    GO_ON,
    Announce,
    CheckpointCommitted,
    CountChunks,
    Open,
    Prune,
    Pull,
    PullDense,
    Push,
    PushArrays,
    PushDense,
    Round,
)

MESSAGE_BYTES = 4096
"""Most bytes of a message in addition to its arrays."""
FromOpener = Announce | CheckpointCommitted | CountChunks | Prune
FromWorker = Push | Pull | PushDense | PullDense


@dataclass(frozen=True)
class Received:
    """A message and its sender."""

    sender: bytes
    header: Any
    arrays: Any
    at_seconds: float = field(default_factory=lambda: perf_counter(), compare=False)
    """When it arrived, by this process's clock."""
    was_awaited: bool = field(default=False, compare=False)
    """Whether the shard had nothing else to do when it arrived, so that the time is exact."""

    @property
    def nbytes(self) -> int:
        return MESSAGE_BYTES + int(sum(array.nbytes for array in self.arrays))


def held_with(message: Received, held_bytes: int, limit: int) -> int:
    """Bytes held including this message; raises OutOfOrder if there are too many."""
    if held_bytes + message.nbytes > limit:
        raise OutOfOrder(
            f"a {type(message.header).__name__} of {message.nbytes} bytes came for step {message.header.step}, and "
            f"{held_bytes} bytes wait for their rounds already; expected {limit} at most; see whether the dispatcher "
            "is alive, or raise ps.held_bytes"
        )
    return held_bytes + message.nbytes


@dataclass
class Gathering:
    """One round, and the messages of it that have arrived."""

    announced: Received | None = None
    expected: dict[int, int] = field(default_factory=dict)
    """Announced pushers, and the fingerprint of the rows that each sends."""
    pushes: dict[int, Received] = field(default_factory=dict)
    early: list[Received] = field(default_factory=list)
    """Pushes that came before the announcement, from anyone: which ones are valid is known only then."""
    pulls: list[Received] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return self.announced is not None and self.pushes.keys() == self.expected.keys()


class Rounds:
    """The rounds of one generation."""

    def __init__(self, held_bytes: int = HELD_BYTES) -> None:
        self.applied: Round | None = None
        self._last: Round | None = None
        self._queue: deque[Round] = deque()
        self._gathering: dict[Round, Gathering] = {}
        self._limit = held_bytes
        self._held = 0

    @property
    def waiting(self) -> int:
        """Rounds that are announced and not applied."""
        return len(self._queue)

    def check_next(self, header: Announce) -> None:
        """Raises OutOfOrder unless the round comes after all that were announced."""
        at = (header.step, header.phase)
        if self._last is not None and at <= self._last:
            raise OutOfOrder(
                f"round {at} was announced after round {self._last}; expected a later one; announce each once"
            )

    def announce(self, announced: Received) -> list[Received]:
        """Adds the next round; returns the pushes that arrived before it, to be pushed again now that it is known."""
        header: Announce = announced.header
        self.check_next(header)
        self._last = at = (header.step, header.phase)
        self._queue.append(at)
        gathering = self._gathering.setdefault(at, Gathering())
        gathering.announced = announced
        gathering.expected = dict(zip(header.pushers, announced.arrays.pushed.tolist(), strict=True))
        early, gathering.early = gathering.early, []
        self._release(early)
        return early

    def push(self, push: Received) -> None:
        """Adds a push; one whose round is not announced yet is held until it is."""
        header: Push = push.header
        at = (header.step, header.phase)
        gathering = self._waiting_for(at, "push")
        if gathering.announced is None:
            self._hold(at, push, gathering).early.append(push)
            return
        self._check_expected(push, gathering)
        gathering.pushes[header.worker] = push

    def pull(self, pull: Received) -> bool:
        """Whether the pull's round has been applied; if not, the pull is held until it is."""
        header: Pull = pull.header
        at = (header.step, header.phase)
        if self.applied is not None and at <= self.applied:
            return True
        self._hold(at, pull, self._waiting_for(at, "pull")).pulls.append(pull)
        return False

    def next_complete(self) -> Gathering | None:
        """The oldest announced round if all its pushes have arrived. It counts as applied from now on."""
        if not self._queue or not self._gathering[self._queue[0]].complete:
            return None
        self.applied = self._queue.popleft()
        gathering = self._gathering.pop(self.applied)
        self._release(gathering.pulls)
        return gathering

    def drop(self) -> list[Received]:
        """Forgets every waiting round; returns the pulls that will get no rows."""
        pulls = [pull for gathering in self._gathering.values() for pull in gathering.pulls]
        self._gathering.clear()
        self._queue.clear()
        self._held = 0
        return pulls

    def _check_expected(self, push: Received, gathering: Gathering) -> None:
        """Raises OutOfOrder unless this worker was announced with these rows, and has not pushed them yet."""
        header: Push = push.header
        arrays: PushArrays = push.arrays
        at = (header.step, header.phase)
        worker = header.worker
        if worker not in gathering.expected:
            raise OutOfOrder(
                f"worker {worker} pushed in round {at} without being announced; expected a push only from "
                f"workers {list(gathering.expected)}; does its order match the announcement?"
            )
        if worker in gathering.pushes:
            raise OutOfOrder(f"worker {worker} pushed twice in round {at}; expected one push; the first one counts")
        if fingerprint(arrays.owned_numbers, arrays.part_numbers) != gathering.expected[worker]:
            owned = len(arrays.owned_numbers)
            parts = len(arrays.part_numbers)
            raise OutOfOrder(
                f"worker {worker} pushed {owned} owned rows and {parts} parts in round {at} that are not the rows "
                "announced for it; expected those of its order, each once; does its order match the announcement?"
            )

    def _waiting_for(self, at: Round, what: str) -> Gathering:
        """The round that a message belongs to."""
        if at in self._gathering:
            return self._gathering[at]
        if self._last is not None and at <= self._last:
            raise OutOfOrder(
                f"a {what} came for round {at}, and the round is over; expected one after {self._last}; "
                "see whether its sender follows the dispatcher's orders"
            )
        return Gathering()

    def _hold(self, at: Round, message: Received, gathering: Gathering) -> Gathering:
        """Counts a message that has to wait for its round, which is kept from now on."""
        self._held = held_with(message, self._held, self._limit)
        return self._gathering.setdefault(at, gathering)

    def _release(self, messages: list[Received]) -> None:
        self._held -= sum(message.nbytes for message in messages)


class Fence:
    """Which generation is open, and which messages are allowed in it."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.generation = -1
        self.workers = 0
        self._opener = b""
        """The sender that opened the generation."""
        self._broken: Exception | None = None
        """Why no round of the generation can be carried out any more, or yet."""

    @property
    def opener(self) -> bytes:
        return self._opener

    def check(self, message: Received) -> None:
        """Raises Fenced for a message of another run or an older generation, OutOfOrder for one that is not allowed."""
        header: Header = message.header
        if header.run != self.run or header.generation < self.generation:
            raise Fenced(
                f"{type(header).__name__} of run {header.run!r} generation {header.generation} reached a shard of run "
                f"{self.run!r} generation {self.generation}; expected the same; its sender must join again"
            )
        if isinstance(header, FromOpener | FromWorker):
            self._check_open(header)
        if isinstance(header, FromOpener) and message.sender != self._opener:
            raise OutOfOrder(
                f"{type(header).__name__} of generation {self.generation} came from {message.sender!r}; expected "
                f"{self._opener!r}, which opened the generation; a dispatcher must open a generation of its own first"
            )

    def is_news(self, message: Received) -> bool:
        """Whether an Open begins a new generation, instead of repeating the open one.

        Raises Fenced if another dispatcher has already opened this generation.
        """
        header: Open = message.header
        if header.generation == self.generation and message.sender != self._opener:
            raise Fenced(
                f"generation {header.generation} was opened by {self._opener!r} already, and {message.sender!r} opens "
                "it, too; expected a later one; its sender must begin a generation of its own"
            )
        is_tried_again = self._broken is not None and header.restore != GO_ON
        return header.generation > self.generation or is_tried_again

    def begin(self, message: Received) -> None:
        """Refuses older generations from now on, and rounds of this one until ``let_in``."""
        header: Open = message.header
        self.generation = header.generation
        self.workers = header.workers
        self._opener = message.sender
        self._broken = OutOfOrder("it has not begun")

    def let_in(self) -> None:
        self._broken = None

    def break_off(self, error: Exception) -> None:
        """Refuses rounds until another generation has begun."""
        self._broken = error

    def _check_open(self, header: Header) -> None:
        if header.generation > self.generation:
            raise OutOfOrder(
                f"{type(header).__name__} of generation {header.generation} came while generation {self.generation} is "
                "open; expected the open one; the dispatcher must open a generation on every shard first"
            )
        if self._broken is not None:
            raise OutOfOrder(
                f"generation {self.generation} is broken on this shard: {self._broken}; expected a later one; the "
                "dispatcher must open it"
            )
        if isinstance(header, FromWorker) and not 0 <= header.worker < self.workers:
            raise OutOfOrder(
                f"worker {header.worker} is not one of the {self.workers} workers of this generation; "
                f"expected 0 to {self.workers - 1}; it must join again"
            )

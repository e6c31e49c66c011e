"""The barrier of the dense weights on one shard, piece by piece.

Changes of the range come in *turns*, in the order in which they were announced: the whole range from one worker before
a step trains, or gradients from everyone who trained in it, after the step. Every piece goes through the turns on its
own, so an updated piece is on its way to the workers while they still send gradients of the next one. A pull for a step
is answered piece by piece, each as soon as it has gone through all turns before that step's gradients; neighbouring
pieces that are ready together go together. A checkpoint is a turn, too: every piece is copied as it passes.

Messages may arrive before their turn is announced. They are held, up to a total size.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from ps.config import HELD_BYTES
from ps.dense.range import DenseCopy, DenseRange
from ps.errors import OutOfOrder
from ps.phases import TRAIN
from ps.protocol import BARE, NO_DENSE, WHOLE, Announce, DenseArrays, PullDense, PushDense, Round
from ps.rounds import Received, held_with

KEPT_STEPS = 64
"""Announced steps that may still be pulled for: more than a dispatcher orders ahead."""

TurnKey = tuple[int, int, int]
"""(step, phase, form); the form of a checkpoint is NO_DENSE, since nobody sends anything for it."""


@dataclass
class Turn:
    """One change of the range, and the messages of it that have arrived."""

    key: TurnKey
    workers: tuple[int, ...]
    """Workers that send something, ascending."""
    arrived: list[dict[int, NDArray[Any]]] = field(default_factory=list)
    """Arrays of each piece, by worker, that were not used yet."""
    used: Counter[int] = field(default_factory=Counter)
    """Number of arrays of each piece that were used, in worker order."""
    copy: DenseCopy | None = None
    """For a checkpoint: the target of the copy."""

    def of(self, piece: int) -> dict[int, NDArray[Any]]:
        while len(self.arrived) <= piece:
            self.arrived.append({})
        return self.arrived[piece]

    def has_come(self, piece: int, worker: int) -> bool:
        return worker in self.of(piece) or worker in self.workers[: self.used[piece]]

    def is_used_up(self, piece: int) -> bool:
        return self.used[piece] == len(self.workers)

    def take_next(self, piece: int) -> NDArray[Any] | None:
        """The array of a piece that is next in worker order, if it has arrived."""
        arrived = None if self.is_used_up(piece) else self.of(piece).pop(self.workers[self.used[piece]], None)
        self.used[piece] += arrived is not None
        return arrived


@dataclass
class Waiting:
    """A pull, and the pieces that are still missing from its answer."""

    pull: Received
    pieces: set[int] | None = None
    """Missing pieces; None: not known, because the range is not known yet."""


@dataclass
class Travel:
    """Pieces of one worker's gradient under way, timed by their arrivals: only its link determines their spacing."""

    step: int
    began: float
    ended: float
    nbytes: int = 0
    """Bytes that came after the first piece."""


class DenseLane:
    """The turns of one generation."""

    def __init__(self, dense: DenseRange, held_bytes: int = HELD_BYTES) -> None:
        self._dense = dense
        self._limit = held_bytes
        self._held_bytes = 0
        self._turns: list[Turn] = []
        self._first = 0
        """Number of the oldest turn that is not finished."""
        self._done = [0] * dense.pieces
        """Turns that each piece has gone through."""
        self._before: OrderedDict[int, int] = OrderedDict()
        """Number of turns before each announced step's gradients."""
        self._last: Round = (-1, TRAIN)
        """The last round that was announced."""
        self._held: list[Received] = []
        self._waiting: list[Waiting] = []
        self._travels: dict[int, Travel] = {}

    @property
    def unsettled(self) -> Round | None:
        """The round of the oldest turn that is not finished."""
        return self._turns[0].key[:2] if self._turns else None

    def announce(self, header: Announce) -> list[Received]:
        """Adds the turns of a round; returns the pushes that arrived before it, to be pushed again."""
        self._last = at = (header.step, header.phase)
        if header.dense_whole:
            self._turns.append(Turn((*at, WHOLE), tuple(header.dense_whole)))
        if header.phase == TRAIN:
            self._before[header.step] = self._first + len(self._turns)
        if len(self._before) > KEPT_STEPS:
            self._before.popitem(last=False)
        if header.dense_gradients:
            self._turns.append(Turn((*at, BARE), tuple(sorted(header.dense_gradients))))
        held, self._held = self._held, []
        self._held_bytes -= sum(push.nbytes for push in held)
        return held

    def copy(self) -> DenseCopy:
        """The range after all turns announced so far; complete once every piece has gone through them."""
        copy = self._dense.empty_copy()
        self._turns.append(Turn((*self._last, NO_DENSE), (), copy=copy))
        self._advance()
        return copy

    def push(self, push: Received) -> bool:
        """Returns whether the piece was used; a piece whose turn is not announced yet is held until it is."""
        header: PushDense = push.header
        arrays: DenseArrays = push.arrays
        key = (header.step, header.phase, header.form)
        turn = next((turn for turn in self._turns if turn.key == key), None)
        if turn is None:
            self._hold(push, key)
            return False
        self._check_expected(turn, header)
        self._dense.check(header.form, header.piece, arrays.floats.size)
        turn.of(header.piece)[header.worker] = arrays.floats
        self._time(push)
        self._advance(range(header.piece, header.piece + 1))
        return True

    def pull(self, pull: Received) -> None:
        """Notes a request, to be answered by ``answers``."""
        header: PullDense = pull.header
        if self._before and header.step < next(iter(self._before)):
            raise OutOfOrder(
                f"dense weights were asked for of step {header.step}, which is over; expected a step from "
                f"{next(iter(self._before))} on; see whether its sender follows the dispatcher's orders"
            )
        self._held_bytes = held_with(pull, self._held_bytes, self._limit)
        self._waiting.append(Waiting(pull))

    def answers(self) -> Iterator[tuple[Received, range]]:
        """Every pull that can be answered now, with neighbouring pieces, each once."""
        for waiting in list(self._waiting):
            yield from ((waiting.pull, pieces) for pieces in neighbours(self._ready(waiting)))
            if waiting.pieces is not None and not waiting.pieces:
                self._waiting.remove(waiting)
                self._held_bytes -= waiting.pull.nbytes

    def drop(self) -> list[Received]:
        """Forgets every turn; returns the pulls that will not be answered."""
        waiting, self._waiting = self._waiting, []
        self._turns.clear()
        self._held.clear()
        return [each.pull for each in waiting]

    def travelled(self, worker: int) -> tuple[int, float]:
        """Bytes of a worker's last gradient after its first piece, and the seconds they took; returned once."""
        travel = self._travels.pop(worker, None)
        return (travel.nbytes, max(0.0, travel.ended - travel.began)) if travel else (0, 0.0)

    def _ready(self, waiting: Waiting) -> list[int]:
        header: PullDense = waiting.pull.header
        target = self._before.get(header.step)
        if target is None or (min(self._done) < target and header.form == WHOLE):
            return []
        if waiting.pieces is None and max(self._done) >= target:
            waiting.pieces = {0} if header.form == WHOLE else set(range(len(self._done)))
        ready = [piece for piece in sorted(waiting.pieces or ()) if self._done[piece] >= target]
        waiting.pieces = waiting.pieces and waiting.pieces.difference(ready)
        return ready

    def _advance(self, pieces: Iterable[int] | None = None) -> None:
        """Takes pieces, all if none are given, through the turns that are complete for them."""
        for piece in range(len(self._done)) if pieces is None else pieces:
            while self._done[piece] < self._first + len(self._turns):
                turn = self._turns[self._done[piece] - self._first]
                if turn.key[2] == WHOLE:
                    if min(self._done) < self._done[piece] or (whole := turn.take_next(0)) is None:
                        break
                    self._dense.put(whole)
                    self._done = [self._done[piece] + 1] * self._dense.pieces
                    self._advance()
                    return
                if turn.copy is not None:
                    self._dense.copy(piece, turn.copy)
                elif not self._apply(turn, piece):
                    break
                self._done[piece] += 1
        while self._turns and min(self._done) > self._first:
            del self._turns[0]
            self._first += 1

    def _apply(self, turn: Turn, piece: int) -> bool:
        """Adds the gradients that are next; returns whether all have come, and were applied."""
        while (gradient := turn.take_next(piece)) is not None:
            self._dense.add(piece, gradient, is_first=turn.used[piece] == 1)
        if turn.is_used_up(piece):
            self._dense.apply(piece)
        return turn.is_used_up(piece)

    def _check_expected(self, turn: Turn, header: PushDense) -> None:
        if header.worker not in turn.workers:
            raise OutOfOrder(
                f"worker {header.worker} pushed dense weights in (step, phase, form) {turn.key} without being "
                f"announced; expected workers {list(turn.workers)}; does its order match the announcement?"
            )
        is_over = header.piece < len(self._done) and self._done[header.piece] > self._first + self._turns.index(turn)
        if is_over or turn.has_come(header.piece, header.worker):
            raise OutOfOrder(
                f"worker {header.worker} pushed piece {header.piece} of dense weights twice in (step, phase, form) "
                f"{turn.key}; expected it once; the first one counts"
            )

    def _hold(self, push: Received, key: TurnKey) -> None:
        if key[:2] <= self._last:
            raise OutOfOrder(
                f"dense weights came in (step, phase, form) {key}, which was not announced or is over; expected one "
                f"after round {self._last}; does its sender's order match the announcement?"
            )
        self._held_bytes = held_with(push, self._held_bytes, self._limit)
        self._held.append(push)

    def _time(self, push: Received) -> None:
        header: PushDense = push.header
        travel = self._travels.get(header.worker)
        if travel is None or travel.step != header.step:
            self._travels[header.worker] = Travel(header.step, push.at_seconds, push.at_seconds)
        else:
            travel.ended = push.at_seconds
            travel.nbytes += push.arrays.floats.nbytes


def neighbours(pieces: Sequence[int]) -> Iterator[range]:
    """Ascending numbers as ranges, the fewest that there can be."""
    first = 0
    for at, piece in enumerate(pieces):
        if at + 1 == len(pieces) or pieces[at + 1] != piece + 1:
            yield range(pieces[first], piece + 1)
            first = at + 1

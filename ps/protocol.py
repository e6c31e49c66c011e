"""The messages of the parameter server, and the order in which they may come.

Legend: W columns of a row's value, S of its optimizer state.

A *round* is (step, phase): phase TRAIN is the step itself, phase FLUSH (after it) writes every owned or split row back
without training. For each round the dispatcher announces to every shard what will happen there; workers then push and
pull; a shard answers a pull only when every announced push of that round has been applied: no other barrier is needed.
"""

from typing import ClassVar

import msgspec

from infra.wire import Header, Refused

TRAIN = 0
FLUSH = 1

Round = tuple[int, int]
"""(step, phase), ordered"""


class RowShape(msgspec.Struct, frozen=True):
    """Shape of one row: dim embedding columns, a wide column if the model carries one, then the optimizer's state."""

    dim: int
    wide: bool
    state: int

    @property
    def value(self) -> int:
        return self.dim + int(self.wide)

    @property
    def total(self) -> int:
        return self.value + self.state


# ── dispatcher → shard ────────────────────────────────────────────────────────────────────────────────────────────────
class Open(Header, frozen=True):
    """Starts a generation: rounds of older ones are refused from now on. Answered by Done."""

    workers: int


class Announce(Header, frozen=True):
    """What round (step, phase) will do on one shard. Rounds are announced in order."""

    BULK: ClassVar = ("i8", "u8", "i8", "i8", "i8")
    """new row numbers, their keys; split rows settled by this round; rows made up to date by this round, and the step
    that last changed each of those."""

    phase: int
    pushers: list[int]
    """workers that will send exactly one Push to this shard in this round"""


# ── worker → shard ────────────────────────────────────────────────────────────────────────────────────────────────────
class Push(Header, frozen=True):
    """Owned rows as value and state, then parts of split rows as partial gradients. Not answered."""

    BULK: ClassVar = ("i8", "*", "i8", "*")
    """owned row numbers, their [value | state] (W+S each); part row numbers, their gradients (W each)"""

    phase: int
    worker: int


class Pull(Header, frozen=True):
    """Asks for rows of round (step, TRAIN). Answered by Rows once the round's pushes have been applied."""

    BULK: ClassVar = ("i8", "i8")
    """row numbers wanted with state, row numbers wanted as value only"""

    worker: int


class Peek(Header, frozen=True):
    """Asks for rows as they are now, outside any round: tests, checkpoints, snapshots. Answered by Rows."""

    BULK: ClassVar = ("i8",)


class Count(Header, frozen=True):
    """Asks for the shard's ledger. Answered by Ledger."""


# ── shard → worker, dispatcher ────────────────────────────────────────────────────────────────────────────────────────
class Done(Header, frozen=True):
    """Carried out."""


class Rows(Header, frozen=True):
    """Rows asked for by Pull or Peek, in the order asked."""

    BULK: ClassVar = ("*", "*", "i8")
    """[value | state] rows (W+S each), value rows (W each), and for Peek the step that last changed each row"""

    held_seconds: float = 0.0
    """from the question's arrival to this answer: not the link's doing"""


class Ledger(Header, frozen=True):
    """What the shard saw, one line per (step, phase, worker), oldest first; a bounded number of lines is kept."""

    BULK: ClassVar = ("i8", "i8", "i8", "i8", "i8", "i8")
    """step, phase, worker, rows pulled, owned rows pushed, parts pushed"""

    rows: int


TO_SHARD = (Open, Announce, Push, Pull, Peek, Count)
FROM_SHARD = (Done, Rows, Ledger, Refused)

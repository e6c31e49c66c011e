"""The messages between dispatcher, workers and PS shards, and the order in which they may come.

Legend: B samples of a batch, b of a micro-batch, F keys a sample, W width of a row's value, S of its optimizer state.

A *round* is (step, phase): phase TRAIN is the step itself, phase FLUSH (after it) writes every owned or split row back
without training. For each round the dispatcher announces to every shard what will happen there; workers then push and
pull; a shard answers a pull only when every announced push of that round has been applied: no other barrier is needed.
"""

from typing import ClassVar

import msgspec

from infra.wire import Header, Refused

TRAIN = 0
FLUSH = 1


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


# ── worker → dispatcher ───────────────────────────────────────────────────────────────────────────────────────────────
class Join(Header, frozen=True):
    """A worker offers itself; answered by Welcome when a generation with it starts."""

    worker: str
    store: str
    """host:port of the torch store this worker opened; rank 0's is used"""
    link_gbit: float = 0.0
    """speed of its link in Gbit/s; 0: not known, taken as fast as the fastest"""


class Leave(Header, frozen=True):
    """A worker asks to go; it flushes with everyone at the next step boundary, then gets Goodbye."""

    worker: str


class Report(Header, frozen=True):
    """What one worker did in one round."""

    BULK: ClassVar = ("f4",)
    """logits of its micro-batch, in the order's sample order"""

    phase: int
    worker: int
    seconds: dict[str, float]
    """by phase of the step: push, pull, forward, backward, reduce, rows"""
    pulled_bytes: int
    pushed_bytes: int
    reduced_bytes: int = 0
    """sent to other workers to sum the gradients of replicated rows; as many came back at the same time"""
    link_bytes: int = 0
    """moved in transfers whose time is known, both directions"""
    link_seconds: float = 0.0
    """in which these were on their way"""


# ── dispatcher → worker ───────────────────────────────────────────────────────────────────────────────────────────────
class Welcome(Header, frozen=True):
    """A generation starts: the worker's number in it, its size, and where the dense process group meets."""

    worker: int
    workers: int
    store: str
    cache_rows: int


class Order(Header, frozen=True):
    """One worker's part of one round. A row's place in the PS is (shard, number) = (row % shards, row // shards)."""

    BULK: ClassVar = ("i8", "i4", "i8", "i4", "i8", "i4", "i8", "i4", "i4", "i4", "f4", "f4")
    """rows and slots of: owned pushes (2), part pushes (2), pulls with state (2), pulls of values (2);
    slots used by the micro-batch (rows it alone uses first, then shared ones), then of the batch's replicated rows;
    per sample and field the position in those slots (b×F); dense inputs (b×N); labels (b)"""

    phase: int
    samples: int
    """size of the micro-batch"""
    batch: int
    """size of the whole batch; the loss is divided by it"""
    alone: int
    """how many of the used slots hold rows that no other worker uses in this step"""
    replicated: int = 0
    """how many of the used slots, the last ones, hold replicated rows: the same rows in the same order on every worker,
    their gradients summed over all, the optimizer applied by each"""


class Idle(Header, frozen=True):
    """Nothing to train at the moment; the dispatcher is still there."""


class Goodbye(Header, frozen=True):
    """The worker's generation is over and it has no place in the next: exit 0."""

    save_dense: bool
    """whether this worker writes the dense weights before it goes"""


TO_SHARD = (Open, Announce, Push, Pull, Peek, Count)
FROM_SHARD = (Done, Rows, Ledger, Refused)
TO_DISPATCHER = (Join, Leave, Report)
FROM_DISPATCHER = (Welcome, Order, Idle, Goodbye, Refused)

Round = tuple[int, int]
"""(step, phase), ordered"""


def ring_moved(workers: int, amount: int) -> int:
    """How much of an all-reduce each worker sends, rounded up; it receives as much at the same time.

    Gloo and NCCL sum in a ring: in 2·(n-1) turns every worker passes on an n-th, first to add up, then to hand out.
    Links carry both directions at once, so what is sent is what the ring keeps a link busy with.
    """
    return -(-2 * (workers - 1) * amount // workers)


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

"""The messages of the parameter server, and the order in which they may come.

Legend: W columns of a row's value, S of its optimizer state.

A *round* is (step, phase): phase TRAIN is the step itself, phase FLUSH (after it) writes every owned or split row back
without training. For each round the dispatcher announces to every shard what will happen there; workers then push and
pull; a shard answers a pull only when every announced push of that round has been applied: no other barrier is needed.

The dense weights are one more row, cut into one range per shard. What a worker owes of them, the gradient of the step
before or everything, comes with its push of the next round; what it needs of them comes with the rows it pulls.
"""

from typing import Annotated, ClassVar, NamedTuple

import msgspec
from msgspec import Meta

from infra.agreement import differing
from infra.wire import I64, NO_F32, NO_I64, NO_U64, U64, Float, Header, Name, Number, Refused, Seconds, Step
from ps.errors import Disagreement

TRAIN = 0
FLUSH = 1
MOST_WORKERS = 128
"""of a generation"""

NO_DENSE = 0
BARE = 1
"""as long as the weights: a gradient on its way to a shard, weights on their way back"""
WHOLE = 2
"""weights and optimizer state"""

Round = tuple[int, int]
"""(step, phase), ordered"""
RoundPhase = Annotated[int, Meta(ge=TRAIN, le=FLUSH)]
WorkerNumber = Annotated[int, Meta(ge=0, lt=MOST_WORKERS)]
DenseForm = Annotated[int, Meta(ge=NO_DENSE, le=WHOLE)]
"""what of the dense weights a message carries or asks for"""
WorkerCount = Annotated[int, Meta(ge=1, le=MOST_WORKERS)]
AgreedSettings = Annotated[dict[Name, Annotated[str, Meta(max_length=1000)]], Meta(max_length=200)]


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

    @property
    def value_share(self) -> float:
        """Of a row's bytes."""
        return self.value / self.total


class Terms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which shard the receiver is taken for, and the settings that it must share with the sender."""

    shard: Number
    shards: Number
    settings: AgreedSettings

    def check(self, theirs: "Terms", sender: str) -> None:
        """Raises Disagreement if a shard on these terms cannot work with a sender on those."""
        if (self.shard, self.shards) != (theirs.shard, theirs.shards):
            raise Disagreement(
                f"this is shard {self.shard} of {self.shards}, and {sender} takes it for shard {theirs.shard} of "
                f"{theirs.shards}; expected one endpoint per shard in the order of their numbers; correct the order of "
                f"--ps or ps.endpoints in {sender}, or --shard here"
            )
        if difference := differing(self.settings, f"shard {self.shard}", theirs.settings, sender):
            raise Disagreement(difference)


ONLY_SHARD = Terms(0, 1, {})
"""of a shard that is the only one, where no settings are compared"""


# ── dispatcher → shard ────────────────────────────────────────────────────────────────────────────────────────────────
class Open(Header, frozen=True):
    """Starts a generation: rounds of older ones are refused from now on. Answered by Done."""

    workers: WorkerCount
    terms: Terms = ONLY_SHARD


class AnnounceArrays(NamedTuple):
    new_numbers: I64 = NO_I64
    """of rows that are created"""
    new_keys: U64 = NO_U64
    """of the same rows"""
    settled: I64 = NO_I64
    """split rows whose last part this round brings"""
    changed: I64 = NO_I64
    """rows that this round brings up to date"""
    changed_steps: I64 = NO_I64
    """the step that last changed each of those"""
    pushed: U64 = NO_U64
    """fingerprint of the rows that each pusher brings, see ps.rounds.fingerprint"""


class Announce(Header, frozen=True):
    """What round (step, phase) will do on one shard. Rounds are announced in order, by who opened the generation."""

    ARRAYS: ClassVar = AnnounceArrays
    EQUALLY_LONG: ClassVar = (("new_numbers", "new_keys"), ("changed", "changed_steps"))

    phase: RoundPhase
    pushers: Annotated[list[WorkerNumber], Meta(max_length=MOST_WORKERS)]
    """workers that will send exactly one Push to this shard in this round"""
    dense_pushers: Annotated[list[WorkerNumber], Meta(max_length=MOST_WORKERS)] = msgspec.field(default_factory=list)
    """those of them whose Push has something dense"""
    dense_form: DenseForm = NO_DENSE
    """what that is: everybody's gradient, which is summed and applied once, or the whole of one worker"""


# ── worker → shard ────────────────────────────────────────────────────────────────────────────────────────────────────
class Meet(Header, frozen=True):
    """A worker that is about to join asks whether it can work with this shard. Answered by Done or Refused."""

    worker: Name
    """its name"""
    terms: Terms


class PushArrays(NamedTuple):
    owned_numbers: I64
    owned_rows: Float
    """[value | state] of each (W+S)"""
    part_numbers: I64
    part_gradients: Float
    """of each (W)"""
    dense: Float = NO_F32
    """this shard's range of the dense weights, in the form that the header names"""


class Push(Header, frozen=True):
    """Owned rows as value and state, parts of split rows as partial gradients, something dense. Not answered."""

    ARRAYS: ClassVar = PushArrays

    phase: RoundPhase
    worker: WorkerNumber
    dense: DenseForm = NO_DENSE


class PullArrays(NamedTuple):
    full_numbers: I64 = NO_I64
    """rows wanted with state"""
    value_numbers: I64 = NO_I64
    """rows wanted as value alone"""


class Pull(Header, frozen=True):
    """Asks for rows of round (step, TRAIN). Answered by Rows once the round's pushes have been applied."""

    ARRAYS: ClassVar = PullArrays

    worker: WorkerNumber
    dense: DenseForm = NO_DENSE
    """what is wanted of the dense weights"""


class PeekArrays(NamedTuple):
    numbers: I64


class Peek(Header, frozen=True):
    """Asks for rows as they are now, outside any round: tests, checkpoints, snapshots. Answered by Rows."""

    ARRAYS: ClassVar = PeekArrays

    dense: DenseForm = NO_DENSE
    """what is wanted of the dense weights"""


class Count(Header, frozen=True):
    """Asks for the shard's ledger. Answered by Ledger."""


# ── shard → worker, dispatcher ────────────────────────────────────────────────────────────────────────────────────────
class Done(Header, frozen=True):
    """Carried out."""


class RowsArrays(NamedTuple):
    full: Float
    """[value | state] of each row wanted with state (W+S)"""
    values: Float
    """value of each row wanted without (W)"""
    steps: I64 = NO_I64
    """answering a Peek: the step that last changed each row"""
    dense: Float = NO_F32
    """this shard's range of the dense weights, in the form asked for"""


class Rows(Header, frozen=True):
    """Rows asked for by Pull or Peek, in the order asked."""

    ARRAYS: ClassVar = RowsArrays

    held_seconds: Seconds = 0.0
    """from the request's arrival to this answer: time that the link is not to blame for"""


class LedgerArrays(NamedTuple):
    """Columns of the ledger: the round and the worker, then how many rows and dense floats it moved."""

    step: I64
    phase: I64
    worker: I64
    pulled: I64
    owned: I64
    """owned rows pushed"""
    parts: I64
    """parts pushed"""
    dense_pushed: I64
    """floats"""
    dense_pulled: I64
    """floats"""


class Ledger(Header, frozen=True):
    """What the shard saw, one line per (step, phase, worker), oldest first; a bounded number of lines is kept."""

    ARRAYS: ClassVar = LedgerArrays
    EQUALLY_LONG: ClassVar = (LedgerArrays._fields,)

    rows: Number
    """rows that the shard holds"""
    applied_step: Step
    """of the last round of this generation that has been applied; -1: none"""
    applied_phase: RoundPhase


TO_SHARD = (Open, Announce, Meet, Push, Pull, Peek, Count)
FROM_SHARD = (Done, Rows, Ledger, Refused)

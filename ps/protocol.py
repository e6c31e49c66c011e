"""The messages of the parameter server, and the order in which they may come.

Legend: W columns of a row's value, S of its optimizer state.

A *round* is (step, phase). What a step moves is up to three rounds: EARLY are rows that the step before does not train,
which may move while it does; TRAIN are the others; EVICT are rows that make room in a cache, which nobody waits for in
this step. FLUSH, after them, writes every owned or split row back without training. For each round the dispatcher
announces to every shard what will happen there; workers then push and pull; a shard answers a pull only when every
announced push of that round, and of those before it, has been applied: no other barrier is needed.

The dense weights are one more row, cut into one range per shard, and move in messages of their own: gradients as soon
as a worker has them, in pieces, and every piece comes back as soon as it is changed. The announcement of a step's TRAIN
round says who brings everything before the step, and who brings a gradient after it (ps/dense/lane.py).
"""

from typing import Annotated, ClassVar, NamedTuple

import msgspec
from msgspec import Meta

from infra.base.agreement import differing
from infra.base.wire import I64, NO_F32, NO_I64, NO_U64, U64, Bytes, Float, Header, Name, Number, Refused, Seconds, Step
from ps.errors import Disagreement
from ps.phases import EARLY, LAST_FLUSH, MOST_WORKERS, TRAIN

CHECKPOINT_ON_DISK = "cut"
"""what files and the journal call a checkpoint: the name of earlier releases, kept so that their runs can be read"""
GO_ON = -1
"""in place of a checkpoint: the shard keeps the model that it has"""
EMPTY_MODEL = 0
"""the checkpoint that every run begins with"""

NO_DENSE = 0
BARE = 1
"""as long as the weights: a gradient on its way to a shard, weights on their way back"""
WHOLE = 2
"""weights and optimizer state"""

Round = tuple[int, int]
"""(step, phase), ordered"""
RoundPhase = Annotated[int, Meta(ge=EARLY, le=LAST_FLUSH)]
WorkerNumber = Annotated[int, Meta(ge=0, lt=MOST_WORKERS)]
DenseForm = Annotated[int, Meta(ge=NO_DENSE, le=WHOLE)]
"""what of the dense weights a message carries or asks for"""
MOST_PARTS = 1000
SomeDense = Annotated[int, Meta(ge=BARE, le=WHOLE)]
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
                f"{theirs.shards}; expected the number under which it offered itself; give every shard its own --shard "
                "and the same ps.shards"
            )
        if difference := differing(self.settings, f"shard {self.shard}", theirs.settings, sender):
            raise Disagreement(difference)


ONLY_SHARD = Terms(0, 1, {})
"""of a shard that is the only one, where no settings are compared"""


# ── dispatcher → shard ────────────────────────────────────────────────────────────────────────────────────────────────
class Open(Header, frozen=True):
    """Starts a generation: rounds of older ones are refused from now on. Answered by Opened."""

    workers: WorkerCount
    terms: Terms = ONLY_SHARD
    restore: Step = GO_ON
    """the checkpoint whose model the shard goes back to before it answers"""


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
    dense_whole: Annotated[list[WorkerNumber], Meta(max_length=1)] = msgspec.field(default_factory=list)
    """who brings all of the dense weights before anyone pulls them for this step: one worker or none"""
    dense_gradients: Annotated[list[WorkerNumber], Meta(max_length=MOST_WORKERS)] = msgspec.field(default_factory=list)
    """who brings a gradient of them after this step; summed and applied once, before anyone pulls them again"""
    checkpoint: Number = 0
    """of a flush: the checkpoint that the shard takes once it has applied this round; 0: none"""


class CheckpointCommitted(Header, frozen=True):
    """A checkpoint exists: what it holds need not be part of the next one. Not answered."""

    checkpoint: Number


class Digest(Header, frozen=True):
    """Asks for a digest of all rows as they are now. Answered by Digested."""


# ── worker → shard ────────────────────────────────────────────────────────────────────────────────────────────────────
class PushArrays(NamedTuple):
    owned_numbers: I64
    owned_rows: Float
    """[value | state] of each (W+S)"""
    part_numbers: I64
    part_gradients: Float
    """of each (W)"""


class Push(Header, frozen=True):
    """Owned rows as value and state, parts of split rows as partial gradients. Not answered."""

    ARRAYS: ClassVar = PushArrays

    phase: RoundPhase
    worker: WorkerNumber


class PullArrays(NamedTuple):
    full_numbers: I64 = NO_I64
    """rows wanted with state"""
    value_numbers: I64 = NO_I64
    """rows wanted as value alone"""


class Pull(Header, frozen=True):
    """Asks for rows of a round. Answered by Rows once the round's pushes have been applied."""

    ARRAYS: ClassVar = PullArrays

    worker: WorkerNumber
    phase: RoundPhase = TRAIN


class DenseArrays(NamedTuple):
    floats: Float
    """one piece of this shard's range, or all of it, as the header says"""


class PushDense(Header, frozen=True):
    """A piece of the gradient of this step, or the whole range. Not answered."""

    ARRAYS: ClassVar = DenseArrays

    phase: RoundPhase
    worker: WorkerNumber
    form: SomeDense
    piece: Number = 0
    """0 if it is the whole range"""


class PullDense(Header, frozen=True):
    """Asks for the dense weights that this step trains with. Answered by one DensePiece for every piece."""

    worker: WorkerNumber
    form: SomeDense


class PeekArrays(NamedTuple):
    numbers: I64


class Peek(Header, frozen=True):
    """Asks for rows as they are now, outside any round: dense weights at the end, tests. Answered by Rows."""

    ARRAYS: ClassVar = PeekArrays

    dense: DenseForm = NO_DENSE
    """what is wanted of the dense weights"""


class Count(Header, frozen=True):
    """Asks for the shard's ledger. Answered by Ledger."""


TAKEN = "taken"
"""told to a shard or worker whose place another process has, in place of the type of a message that was refused"""
DISPLACED = "displaced"
"""told to one whose place another took while it could not be reached, likewise"""


# ── shard → dispatcher, over a connection of its own ──────────────────────────────────────────────────────────────────
class Serve(Header, frozen=True):
    """A shard offers itself, again and again as long as it runs; answered by Heard or Refused."""

    endpoint: Name
    """where it listens"""
    terms: Terms
    publisher: Name = ""
    """where it publishes the files of checkpoints as it writes them; empty: nowhere"""


class Heard(Header, frozen=True):
    """The dispatcher knows the shard; also a sign of life."""


# ── shard → worker, dispatcher ────────────────────────────────────────────────────────────────────────────────────────
class Opened(Header, frozen=True):
    """A generation has started, and the shard holds the model that it was to begin with."""

    rows: Number
    """that the shard holds"""


class FilePart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a checkpoint."""

    name: Name
    """in the checkpoints' storage"""
    nbytes: Bytes
    checksum: Name
    """32 hex digits, xxh3 of its content"""
    rows: Number = 0


class CheckpointSaved(Header, frozen=True):
    """The shard's part of a checkpoint is durable; step: the one that the checkpoint was taken after."""

    checkpoint: Number
    parts: Annotated[list[FilePart], Meta(max_length=MOST_PARTS)]
    """oldest first: a base and changes to it; of a row that several hold, the last counts"""
    rows: Number
    """that the shard held then"""
    non_finite: Number = 0
    """values of all its rows, and of its dense weights, that are NaN or infinite"""


class CheckpointFailed(Header, frozen=True):
    """The shard's part of a checkpoint could not be saved; what it would have held is part of the next."""

    checkpoint: Number
    reason: Annotated[str, Meta(max_length=4000)]


class Digested(Header, frozen=True):
    """The sum, over the shard's rows, of a hash of each one's number in the run, key, value, state and version."""

    rows: Number
    digest: Name
    """32 hex digits: two independent sums modulo 2^64, so that totals can be compared however many shards there are"""


class RowsArrays(NamedTuple):
    full: Float
    """[value | state] of each row wanted with state (W+S)"""
    values: Float
    """value of each row wanted without (W)"""
    steps: I64 = NO_I64
    """answering a Peek: the step that last changed each row"""
    dense: Float = NO_F32
    """answering a Peek: this shard's range of the dense weights, in the form asked for"""


class Rows(Header, frozen=True):
    """Rows asked for by Pull or Peek, in the order asked."""

    ARRAYS: ClassVar = RowsArrays

    phase: RoundPhase = TRAIN
    """of the Pull"""
    held_seconds: Seconds = 0.0
    """from the request's arrival to this answer: time that the link is not to blame for"""


class DensePiece(Header, frozen=True):
    """A piece of the weights, or the whole range: the answer to PullDense."""

    ARRAYS: ClassVar = DenseArrays

    form: SomeDense
    piece: Number
    is_last: bool
    pushed_bytes: Bytes = 0
    """of the receiver's last gradient, but for its first piece; with the last piece of an answer"""
    pushed_seconds: Seconds = 0.0
    """how long they took to arrive behind the first piece: the receiver's link alone is to blame for it"""


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


TO_SHARD = (Open, Announce, CheckpointCommitted, Push, Pull, PushDense, PullDense, Peek, Count, Digest)
FROM_SHARD = (Opened, Rows, DensePiece, Ledger, CheckpointSaved, CheckpointFailed, Digested, Refused)

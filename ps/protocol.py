"""The messages of the parameter server, and the order in which they may come.

Legend: W columns of a row's value, S of its optimizer state.

A *round* is (step, phase). A step moves rows in up to three rounds: EARLY for rows that the step before does not train,
which may move while it computes; TRAIN for the others; EVICT for rows that leave a cache, for which nobody waits in
this step. FLUSH, after them, writes every owned or split row back without training. For each round the dispatcher
announces to every shard what will happen there; workers then push and pull. A shard answers a pull only when every
announced push of that round, and of those before it, has been applied: no other barrier is needed.

The dense weights are handled like one more row, split into one range per shard, and move in separate messages:
gradients are sent as soon as a worker has them, in pieces, and every piece is returned as soon as it is updated. The
announcement of a step's TRAIN round says who sends the whole range before the step, and who sends a gradient after it
(ps/dense/lane.py).
"""

from typing import Annotated, ClassVar, NamedTuple

import msgspec
from msgspec import Meta

from infra.base.agreement import differing
from infra.base.wire import (
    F64,
    I64,
    NO_F32,
    NO_F64,
    NO_I64,
    NO_U8,
    NO_U64,
    U8,
    U64,
    Bytes,
    Float,
    Header,
    Name,
    Number,
    Refused,
    Seconds,
    Step,
)
from ps.bins import BINS
from ps.errors import Disagreement
from ps.phases import EARLY, LAST_FLUSH, MOST_WORKERS, TRAIN

CHECKPOINT_ON_DISK = "cut"
"""What files and the journal call a checkpoint: the name of earlier releases, kept so that their runs can be read."""
GO_ON = -1
"""Used instead of a checkpoint: the shard keeps its current model."""
EMPTY_MODEL = 0
"""The checkpoint that every run begins with."""

NO_DENSE = 0
BARE = 1
"""An array as long as the weights: a gradient on its way to a shard, or weights on their way back."""
WHOLE = 2
"""Weights and optimizer state."""

Round = tuple[int, int]
"""(step, phase), which are ordered."""
RoundPhase = Annotated[int, Meta(ge=EARLY, le=LAST_FLUSH)]
WorkerNumber = Annotated[int, Meta(ge=0, lt=MOST_WORKERS)]
MOST_PADDING = 1 << 20
"""Most zeros that a shard sends because it is asked to."""
Padding = Annotated[int, Meta(ge=0, le=MOST_PADDING)]
DenseForm = Annotated[int, Meta(ge=NO_DENSE, le=WHOLE)]
"""The form of dense weights that a message carries or requests."""
MOST_PARTS = 1000
MOST_CHUNKS = 8
MOST_COLUMNS = 1 << 16
Bin = Annotated[int, Meta(ge=0, le=BINS)]
Column = Annotated[int, Meta(ge=0, lt=MOST_COLUMNS)]
SomeDense = Annotated[int, Meta(ge=BARE, le=WHOLE)]
PieceCount = Annotated[int, Meta(ge=1, le=64)]
WorkerCount = Annotated[int, Meta(ge=1, le=MOST_WORKERS)]
AgreedSettings = Annotated[dict[Name, Annotated[str, Meta(max_length=1000)]], Meta(max_length=200)]


class RowShape(msgspec.Struct, frozen=True):
    """The shape of one row: dim embedding columns, a wide column if the model has one, then its state.

    The state is the optimizer's and, if rows can be pruned, the utility of each chunk and the mask: the number whose
    bit k is set if chunk k is live. The columns of a pruned chunk are zeros, those of its state start values.
    """

    dim: int
    wide: bool
    state: int
    chunks: int = 0

    @property
    def value(self) -> int:
        return self.dim + int(self.wide)

    @property
    def total(self) -> int:
        return self.value + self.state

    @property
    def optimizer_state(self) -> int:
        """Columns of the optimizer's state."""
        return self.state - (self.chunks + 1 if self.chunks else 0)

    @property
    def part(self) -> int:
        """Columns of a part of a split row: the gradient and, if rows can be pruned, the uses and their weight."""
        return self.value + (2 if self.chunks else 0)

    @property
    def value_share(self) -> float:
        """The value's share of a row's bytes."""
        return self.value / self.total


class Terms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shard that the sender believes it is addressing, and the settings that both must share."""

    shard: Number
    shards: Number
    settings: AgreedSettings

    def check(self, theirs: "Terms", sender: str) -> None:
        """Raises Disagreement if a shard with these terms cannot work with a sender with those."""
        if (self.shard, self.shards) != (theirs.shard, theirs.shards):
            raise Disagreement(
                f"this is shard {self.shard} of {self.shards}, and {sender} takes it for shard {theirs.shard} of "
                f"{theirs.shards}; expected the number under which it offered itself; give every shard its own --shard "
                "and the same ps.shards"
            )
        if difference := differing(self.settings, f"shard {self.shard}", theirs.settings, sender):
            raise Disagreement(difference)


ONLY_SHARD = Terms(0, 1, {})
"""The terms of a single shard, without settings to compare."""


# ── dispatcher → shard ────────────────────────────────────────────────────────────────────────────────────────────────
class Open(Header, frozen=True):
    """Starts a generation: rounds of older ones are refused from now on. Answered by Opened."""

    workers: WorkerCount
    terms: Terms = ONLY_SHARD
    restore: Step = GO_ON
    """The checkpoint that the shard goes back to before it answers."""


class AnnounceArrays(NamedTuple):
    new_numbers: I64 = NO_I64
    """Numbers of rows that are created: the next ones."""
    new_keys: U64 = NO_U64
    """Keys of the same rows."""
    settled: I64 = NO_I64
    """Split rows whose last part arrives in this round."""
    changed: I64 = NO_I64
    """Rows that this round brings up to date."""
    changed_steps: I64 = NO_I64
    """The step that last changed each of those."""
    pushed: U64 = NO_U64
    """Fingerprint of the rows that each pusher sends, see ps.fingerprints.fingerprint."""
    forgotten: I64 = NO_I64
    """Rows whose keys are forgotten before anything of this round happens: their numbers are free from then on."""
    reused: I64 = NO_I64
    """Free numbers that get new keys."""
    reused_keys: U64 = NO_U64
    """Those keys."""
    bare: I64 = NO_I64
    """Those of the new and reused rows that begin with all chunks pruned."""


class Announce(Header, frozen=True):
    """What round (step, phase) will do on one shard. The process that opened the generation
    announces rounds in order.
    """

    ARRAYS: ClassVar = AnnounceArrays
    EQUALLY_LONG: ClassVar = (
        ("new_numbers", "new_keys"),
        ("changed", "changed_steps"),
        ("reused", "reused_keys"),
    )

    phase: RoundPhase
    pushers: Annotated[list[WorkerNumber], Meta(max_length=MOST_WORKERS)]
    """Workers that will send exactly one Push to this shard in this round."""
    dense_whole: Annotated[list[WorkerNumber], Meta(max_length=1)] = msgspec.field(default_factory=list)
    """The worker, if any, that sends all of the dense weights before anyone pulls them for this step."""
    dense_gradients: Annotated[list[WorkerNumber], Meta(max_length=MOST_WORKERS)] = msgspec.field(default_factory=list)
    """Workers that send a dense gradient after this step; they are summed and applied once, before the next pull."""
    checkpoint: Number = 0
    """For a flush: the checkpoint that the shard takes once it has applied this round; 0: none."""


class CheckpointCommitted(Header, frozen=True):
    """A checkpoint exists: its content need not be part of the next one. Not answered."""

    checkpoint: Number


class CountChunks(Header, frozen=True):
    """Requests the utilities of all chunks, after a flush. Answered by ChunksCounted."""

    weighs_columns: bool = False
    """Whether the weights of embedding columns are requested, too."""


class Prune(Header, frozen=True):
    """Prunes chunks and brings others back, after a flush, by the bins of their utilities. Answered by Pruned."""

    evict_below: Annotated[list[Bin], Meta(max_length=MOST_CHUNKS)]
    """For each chunk number: live chunks in lower bins are pruned."""
    bring_from: Annotated[list[Bin], Meta(max_length=MOST_CHUNKS)]
    """For each chunk number: pruned chunks in this bin or a higher one come back, with start values."""
    halvings: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    """Times that every utility is halved in the end."""
    columns: Annotated[tuple[Column, ...], Meta(max_length=MOST_COLUMNS)] = ()
    """The embedding columns that rows keep from now on, ascending; empty: those that they have."""


class Digest(Header, frozen=True):
    """Requests a digest of all rows as they are now. Answered by Digested."""


# ── worker → shard ────────────────────────────────────────────────────────────────────────────────────────────────────
class PushArrays(NamedTuple):
    owned_numbers: I64
    owned_rows: Float
    """[value | state] of each owned row (W+S); those of which chunks are pruned as ps/packed.py says."""
    part_numbers: I64
    part_gradients: Float
    """Gradient of each part and, if rows can be pruned, its uses and their weight (RowShape.part)."""
    owned_masks: U8 = NO_U8
    """Masks of the owned rows, if rows can be pruned."""


class Push(Header, frozen=True):
    """Owned rows as value and state, parts of split rows as partial gradients. Not answered."""

    ARRAYS: ClassVar = PushArrays

    phase: RoundPhase
    worker: WorkerNumber
    after_seconds: Seconds = 0.0
    """Time that passed at the sender since its Pull to this shard in the same phase, if it had one."""


class PullArrays(NamedTuple):
    full_numbers: I64 = NO_I64
    """Rows requested with state."""
    value_numbers: I64 = NO_I64
    """Rows requested as value only."""


class Pull(Header, frozen=True):
    """Requests rows of a round. Answered by Rows once the round's pushes have been applied."""

    ARRAYS: ClassVar = PullArrays

    worker: WorkerNumber
    phase: RoundPhase = TRAIN


class DenseArrays(NamedTuple):
    floats: Float
    """One piece of this shard's range, or all of it, as the header says."""


class PushDense(Header, frozen=True):
    """A piece of the gradient of this step, or the whole range. Not answered."""

    ARRAYS: ClassVar = DenseArrays

    phase: RoundPhase
    worker: WorkerNumber
    form: SomeDense
    piece: Number = 0
    """Number of the piece; 0 for the whole range."""


class PullDense(Header, frozen=True):
    """Requests the dense weights that this step trains with. Answered by DensePieces, as the pieces are ready."""

    worker: WorkerNumber
    form: SomeDense


class PeekArrays(NamedTuple):
    numbers: I64
    ballast: U8 = NO_U8
    """Zeros that are sent to see how long they take."""


class Peek(Header, frozen=True):
    """Requests rows as they are now, outside any round: dense weights at the end, tests. Answered by Rows."""

    ARRAYS: ClassVar = PeekArrays

    dense: DenseForm = NO_DENSE
    """The form in which dense weights are requested."""
    padding: Padding = 0
    """Zeros that are requested instead of dense weights, to see how long they take."""


class Count(Header, frozen=True):
    """Requests the shard's ledger. Answered by Ledger."""


TAKEN = "taken"
"""Sent, instead of the type of a refused message, to a shard or worker whose place another process has."""
DISPLACED = "displaced"
"""Sent in the same way to one whose place another process took while it could not be reached."""


# ── shard → dispatcher, over a connection of its own ──────────────────────────────────────────────────────────────────
class Serve(Header, frozen=True):
    """A shard offers itself, again and again while it runs; answered by Heard or Refused."""

    endpoint: Name
    """Where the shard listens."""
    terms: Terms
    publisher: Name = ""
    """Where it publishes the files of checkpoints as it writes them; empty: nowhere."""


class Heard(Header, frozen=True):
    """The dispatcher knows the shard; also a sign of life."""


# ── shard → worker, dispatcher ────────────────────────────────────────────────────────────────────────────────────────
class OpenedArrays(NamedTuple):
    masks: U8 = NO_U8
    """Masks of all rows of a checkpoint that the shard went back to, if rows can be pruned."""


class Opened(Header, frozen=True):
    """A generation has started, and the shard holds the model that the generation begins with."""

    ARRAYS: ClassVar = OpenedArrays

    rows: Number
    """Rows that the shard holds."""


class FilePart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a checkpoint."""

    name: Name
    """Name in the storage of checkpoints."""
    nbytes: Bytes
    checksum: Name
    """32 hex digits, xxh3 of its content."""
    rows: Number = 0


class CheckpointSaved(Header, frozen=True):
    """The shard's part of a checkpoint is durable; step: the step after which the checkpoint was taken."""

    checkpoint: Number
    parts: Annotated[list[FilePart], Meta(max_length=MOST_PARTS)]
    """Files, oldest first: a base and changes to it. If several files hold a row, the last one counts."""
    rows: Number
    """Rows that the shard held at that time."""
    non_finite: Number = 0
    """Number of NaN or infinite values in its rows and dense weights."""


class CheckpointFailed(Header, frozen=True):
    """The shard's part of a checkpoint could not be saved; its content becomes part of the next one."""

    checkpoint: Number
    reason: Annotated[str, Meta(max_length=4000)]


class Digested(Header, frozen=True):
    """The sum, over the shard's rows, of a hash of each one's number in the run, key, value, state and last step."""

    rows: Number
    digest: Name
    """32 hex digits: two independent sums modulo 2^64, so that totals can be compared for any number of shards."""


class ChunksCountedArrays(NamedTuple):
    counts: I64
    """Chunks by (whether they are live, chunk number, bin of the utility), flat."""
    columns: F64 = NO_F64
    """Squared gradients that each embedding column has had in all rows, if requested."""


class ChunksCounted(Header, frozen=True):
    """The answer to a CountChunks."""

    ARRAYS: ClassVar = ChunksCountedArrays


class PrunedArrays(NamedTuple):
    numbers: I64
    """Rows of which a chunk was pruned or came back, ascending."""
    masks: U8
    """Their masks now."""


class Pruned(Header, frozen=True):
    """The answer to a Prune."""

    ARRAYS: ClassVar = PrunedArrays
    EQUALLY_LONG: ClassVar = (PrunedArrays._fields,)

    pruned: Number
    """Chunks pruned."""
    brought_back: Number


class RowsArrays(NamedTuple):
    full: Float
    """[value | state] of each row requested with state (W+S); those of which chunks are pruned as ps/packed.py says."""
    values: Float
    """Value of each row requested without state (W), likewise."""
    steps: I64 = NO_I64
    """In an answer to a Peek: the step that last changed each row."""
    full_masks: U8 = NO_U8
    """Masks of the rows with state, if rows can be pruned."""
    value_masks: U8 = NO_U8
    """Masks of the others."""
    dense: Float = NO_F32
    """In an answer to a Peek: this shard's range of the dense weights, in the requested form."""


class Rows(Header, frozen=True):
    """Rows requested by Pull or Peek, in the order of the request."""

    ARRAYS: ClassVar = RowsArrays

    phase: RoundPhase = TRAIN
    """Phase of the Pull."""
    held_seconds: Seconds = 0.0
    """Time from the request's arrival to this answer, which is not caused by the link."""
    pushed_bytes: Bytes = 0
    """Bytes that the receiver pushed in the phase of its Pull, if it is known how long they took."""
    pushed_seconds: Seconds = 0.0
    """How long they took to arrive after the Pull, which only the receiver's link determines."""


class Coming(Header, frozen=True):
    """Sent directly ahead of a large answer: what passes between their arrivals is the answer's time."""

    phase: RoundPhase = TRAIN
    """Phase of the rows that follow."""
    is_dense: bool = False
    """Whether dense weights follow instead."""


class DensePieces(Header, frozen=True):
    """Neighbouring pieces of the weights, or the whole range: an answer to PullDense."""

    ARRAYS: ClassVar = DenseArrays

    form: SomeDense
    piece: Number
    """Number of the first piece; 0 for the whole range."""
    pieces: PieceCount
    """How many there are; 1 for the whole range."""
    is_last: bool
    pushed_bytes: Bytes = 0
    """Bytes of the receiver's last gradient without its first piece; sent with the last piece of an answer."""
    pushed_seconds: Seconds = 0.0
    """How long they took to arrive after the first piece, which only the receiver's link determines."""


class LedgerArrays(NamedTuple):
    """Columns of the ledger: the round and the worker, then how many rows and dense floats it moved."""

    step: I64
    phase: I64
    worker: I64
    pulled: I64
    owned: I64
    """Owned rows pushed."""
    parts: I64
    """Parts pushed."""
    dense_pushed: I64
    """Dense floats pushed."""
    dense_pulled: I64
    """Dense floats pulled."""


class Ledger(Header, frozen=True):
    """What the shard counted, one entry per (step, phase, worker), oldest first; the newest are kept."""

    ARRAYS: ClassVar = LedgerArrays
    EQUALLY_LONG: ClassVar = (LedgerArrays._fields,)

    rows: Number
    """Rows that the shard holds."""
    applied_step: Step
    """Step of the last round of this generation that has been applied; -1: none."""
    applied_phase: RoundPhase


TO_SHARD = (
    Open,
    Announce,
    CheckpointCommitted,
    CountChunks,
    Prune,
    Push,
    Pull,
    PushDense,
    PullDense,
    Peek,
    Count,
    Digest,
)
FROM_SHARD = (
    Coming,
    Opened,
    Rows,
    DensePieces,
    Ledger,
    CheckpointSaved,
    CheckpointFailed,
    ChunksCounted,
    Pruned,
    Digested,
    Refused,
)

"""Messages between dispatcher and workers; those of the parameter server are in ps/protocol.py.

Legend: b samples of a micro-batch, F keys per sample, N dense inputs.
"""

from typing import Annotated, ClassVar, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from dispatch.tally import PhaseSeconds
from infra.base.errors import ConfigError
from infra.base.packing import BITS
from infra.base.process import NOWHERE, ProcessPlace
from infra.base.wire import F32, NO_F32, NO_I32, NO_I64, Bytes, Header, Name, Number, Refused, Seconds
from ps.phases import MOST_WORKERS
from ps.protocol import NO_DENSE, AgreedSettings, DenseForm, Heard, RoundPhase, Serve, WorkerNumber

MOST_SHARDS = 1024
MOST_SAMPLES = 1_000_000
"""Most samples in a batch."""
SampleCount = Annotated[int, Meta(ge=0, le=MOST_SAMPLES)]
Gbit = Annotated[float, Meta(ge=0, le=1e6)]
Weight = Annotated[float, Meta(ge=0, le=1e38)]
PostKey = Annotated[str, Meta(max_length=1024)]
PostValue = Annotated[bytes, Meta(max_length=1 << 14)]
Rows = Annotated[NDArray[np.int64], "u4", "i8"]
Slots = Annotated[NDArray[np.int32], "u2", "i4"]
Positions = Annotated[NDArray[np.int32], "u1", "u2", "i4"]
Labels = Annotated[NDArray[np.float32], BITS, "f4"]


REMOVED = "removed"
"""Sent to a worker that an operator has removed, in the field for the type of the refused message."""
UNCONFIRMED = "unconfirmed"
"""Sent in the same field to a worker that joined and then stayed silent."""


# ── worker → dispatcher ───────────────────────────────────────────────────────────────────────────────────────────────
class Join(Header, frozen=True):
    """A worker asks to join; answered at once by Admitted or Refused, and by Welcome when a generation starts."""

    worker: Name
    settings: AgreedSettings = msgspec.field(default_factory=dict)
    """Settings that must be the same as the dispatcher's."""
    link_gbit: Gbit = 0.0
    """Speed of its link in Gbit/s; 0 if not known: the link then counts as fast as the fastest one."""
    uplink_gbit: Gbit = 0.0
    """Speed of its uplink; 0: as fast as its link."""
    device: Name = ""
    """The GPU that it can use for NCCL without sharing it; empty if it has none."""
    arithmetic: Name = ""
    """What its results depend on besides its orders: torch, device, threads, instructions."""
    place: ProcessPlace = NOWHERE
    """Where its process runs. On the dispatcher's machine, its load counts as load of the run itself."""


class Ready(Header, frozen=True):
    """The answer to Admitted and to Abort: the worker receives messages and is not in the middle of a step."""


class Post(Header, frozen=True):
    """A member's message to all others of its generation while they form the dense process group, mostly addresses."""

    worker: WorkerNumber
    key: PostKey
    value: PostValue
    """The value; Gloo's address among 128 workers takes 1.2 kB, NCCL's id 128 bytes."""


class Leave(Header, frozen=True):
    """A worker asks to leave. It takes part in the flush at the next step boundary and then gets Goodbye."""

    worker: Name


class GaveUp(Header, frozen=True):
    """A member waited for others in vain and does not complete its order."""

    worker: WorkerNumber


class Watch(Header, frozen=True):
    """A worker's second connection, over which Abort reaches it whatever it is doing; sent every second."""

    worker: Name


class ReportArrays(NamedTuple):
    logits: F32
    """Logits of the micro-batch, in the sample order of the order."""
    more_logits: F32 = NO_F32
    """Logits of labels after the main one (b×L)."""


class Report(Header, frozen=True):
    """What one worker did in one round."""

    ARRAYS: ClassVar = ReportArrays

    phase: RoundPhase
    worker: WorkerNumber
    seconds: PhaseSeconds
    pulled_bytes: Bytes
    pushed_bytes: Bytes
    reduced_bytes: Bytes = 0
    """Bytes sent to other workers to sum the gradients of replicated rows; as many were received at the same time."""
    dense_up_bytes: Bytes = 0
    """Bytes of dense weights or their gradients that were sent, to shards or in a ring."""
    dense_down_bytes: Bytes = 0
    link_bytes: Bytes = 0
    """Bytes received in transfers whose time is known."""
    link_seconds: Seconds = 0.0
    """Duration of these transfers."""
    uplink_bytes: Bytes = 0
    """Bytes sent in transfers whose time is known."""
    uplink_seconds: Seconds = 0.0
    """Duration of these transfers."""


class Probed(Header, frozen=True):
    """The answer to a Probe."""

    worker: WorkerNumber
    link_bytes: Bytes
    """Bytes received."""
    link_seconds: Seconds
    uplink_bytes: Bytes = 0
    """Bytes sent."""
    uplink_seconds: Seconds = 0.0


class Saved(Header, frozen=True):
    """The dense weights are on disk: the answer to a Goodbye that asked to save them."""


# ── dispatcher → worker ───────────────────────────────────────────────────────────────────────────────────────────────
class Admitted(Header, frozen=True):
    """A Join was accepted; the worker is in the next generation if it answers with Ready."""


class Welcome(Header, frozen=True):
    """A generation starts: the worker's number in it, and the names of all its members."""

    worker: WorkerNumber
    names: Annotated[tuple[Name, ...], Meta(max_length=MOST_WORKERS)]
    """Names of the members, by number."""
    cache_rows: Number
    keeps_cache: bool = False
    """Whether the worker's cached rows are still valid; otherwise it starts with an empty cache."""
    uses_hub: bool = False
    """Whether shards sum dense gradients; otherwise workers sum them in a ring."""
    takes_dense: bool = False
    """Whether the shards have newer dense weights than the first member, which then pulls them before it shares them.
    """
    starts_anew: bool = False
    """Whether the model is the empty one, so that dense weights begin with their initial values."""
    shards: Annotated[tuple[Name, ...], Meta(max_length=MOST_SHARDS)] = ()
    """Endpoints of the shards, by number."""


class Abort(Header, frozen=True):
    """The generation is over, whatever the worker is doing, because a process is lost. Answered by Ready."""


class Posted(Header, frozen=True):
    """A Post of another member, passed on by the dispatcher, so that workers need no meeting point of their own."""

    key: PostKey
    value: PostValue


class OrderArrays(NamedTuple):
    """The rows that move, each with its slot, early ones first, and the micro-batch. All arrays are empty by default.

    Orders are most of what a worker receives from the dispatcher, so each number is sent in the narrowest type that
    fits.
    """

    owned_rows: Rows = NO_I64
    """Rows pushed as value and state."""
    owned_slots: Slots = NO_I32
    part_rows: Rows = NO_I64
    """Rows for which this worker's part of the gradient is pushed."""
    part_slots: Slots = NO_I32
    full_rows: Rows = NO_I64
    """Rows pulled as value and state."""
    full_slots: Slots = NO_I32
    value_rows: Rows = NO_I64
    """Rows pulled as value alone."""
    value_slots: Slots = NO_I32
    used_slots: Slots = NO_I32
    """Slots of the micro-batch (rows that only this worker uses, then shared ones), then of the replicated rows."""
    positions: Positions = NO_I32
    """Position in used_slots for each sample and field (b×F)."""
    dense: F32 = NO_F32
    """Dense inputs (b×N)."""
    labels: Labels = NO_F32
    columns: Positions = NO_I32
    """The embedding columns that rows have kept, ascending; empty: all."""
    weights: F32 = NO_F32
    """Weights of the samples; empty: all weigh 1."""
    shares: F32 = NO_F32
    """Shares of the values of pooled tables (b×P)."""
    more_labels: Labels = NO_F32
    """Labels after the main one (b×L), NaN where there is none."""


class Early(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many rows of each list are not trained by the preceding step, so that they may move during it."""

    owned: Number
    """Number of early rows at the beginning of the list of owned rows; parts, full and values count the same way."""
    parts: Number
    full: Number
    values: Number
    evicted_owned: Number
    """Number of rows at the end of the owned rows that are evicted to make room in the cache; nobody waits for them."""
    evicted_parts: Number
    """The same number for the list of parts."""


NONE_EARLY = Early(0, 0, 0, 0, 0, 0)


class Order(Header, frozen=True):
    """One worker's part of a step or flush. A row is stored at (shard, number) = (row % shards, row // shards)."""

    ARRAYS: ClassVar = OrderArrays
    EQUALLY_LONG: ClassVar = (
        ("owned_rows", "owned_slots"),
        ("part_rows", "part_slots"),
        ("full_rows", "full_slots"),
        ("value_rows", "value_slots"),
    )

    phase: RoundPhase
    samples: SampleCount
    """Size of the micro-batch."""
    batch: SampleCount
    """Size of the whole batch; the loss is divided by it."""
    alone: Number
    """How many of the used slots hold rows that no other worker uses in this step."""
    sharing: Number = 1
    """Number of workers that have samples in this step."""
    replicated: Number = 0
    """How many of the used slots, the last ones, hold replicated rows: the same rows in the same order on every worker.
    Their gradients are summed over all workers, and each worker applies the optimizer.
    """
    early: Early = NONE_EARLY
    weight: Weight = 0.0
    """What a use of a row adds to the utilities of its chunks, if rows can be pruned."""
    gives_dense: bool = False
    """Whether the worker first pushes all dense weights."""
    dense_pull: DenseForm = NO_DENSE
    """Form in which it then pulls dense weights, if at all."""
    owes_gradient: bool = False
    """Whether it pushes its dense gradient at the end; if not and the hub is used, it updates the dense weights itself.
    """


class Idle(Header, frozen=True):
    """A keep-alive from a dispatcher that has nothing else to send."""


class Probe(Header, frozen=True):
    """A worker without samples is asked to measure its link: it fetches so many bytes from the shards, then sends as
    many.
    """

    link_bytes: Bytes


class Goodbye(Header, frozen=True):
    """The worker's generation is over and it is not in the next one: it exits with code 0."""

    save_dense: bool
    """Whether this worker saves the dense weights before it leaves, and confirms that with Saved."""


TO_DISPATCHER = (Join, Ready, Leave, Post, GaveUp, Report, Probed, Saved, Watch, Serve)
FROM_DISPATCHER = (Admitted, Welcome, Abort, Posted, Order, Idle, Probe, Goodbye, Heard, Refused)


def unencrypted(workers: int) -> ConfigError:
    """The error for a run with encryption keys in which several workers would sum gradients unencrypted."""
    return ConfigError(
        f"{workers} workers sum dense gradients over Gloo or NCCL, which do not encrypt, and curve_folder is set: the "
        "sums would cross the network in the clear; expected one worker, trainer.reduce = 'hub', or "
        "trainer.unencrypted_reduce = true; set it in every process if you trust the network between the workers"
    )

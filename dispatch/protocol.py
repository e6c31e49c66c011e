"""The messages between dispatcher and workers; those of the parameter server are in ps/protocol.py.

Legend: b samples of a micro-batch, F keys a sample, N dense inputs.
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
"""of a batch"""
SampleCount = Annotated[int, Meta(ge=0, le=MOST_SAMPLES)]
Gbit = Annotated[float, Meta(ge=0, le=1e6)]
PostKey = Annotated[str, Meta(max_length=1024)]
PostValue = Annotated[bytes, Meta(max_length=1 << 14)]
Rows = Annotated[NDArray[np.int64], "u4", "i8"]
Slots = Annotated[NDArray[np.int32], "u2", "i4"]
Positions = Annotated[NDArray[np.int32], "u1", "u2", "i4"]
Labels = Annotated[NDArray[np.float32], BITS, "f4"]


REMOVED = "removed"
"""told to a worker that an operator has removed, in place of the type of a message that was refused"""
UNCONFIRMED = "unconfirmed"
"""told to one that joined and then was silent, likewise"""


# ── worker → dispatcher ───────────────────────────────────────────────────────────────────────────────────────────────
class Join(Header, frozen=True):
    """A worker offers itself; answered by Admitted or Refused at once, and by Welcome when a generation starts."""

    worker: Name
    settings: AgreedSettings = msgspec.field(default_factory=dict)
    """those that it must share with the dispatcher"""
    link_gbit: Gbit = 0.0
    """speed of its link in Gbit/s; 0: not known, and taken to be as fast as the fastest"""
    device: Name = ""
    """of its own for NCCL; empty: none"""
    arithmetic: Name = ""
    """what its results depend on besides its orders: torch, device, threads, instructions"""
    place: ProcessPlace = NOWHERE
    """where its process runs: on the dispatcher's machine its load is the run's own"""


class Ready(Header, frozen=True):
    """The answer to Admitted and to Abort: the worker hears the dispatcher and is not in the middle of a step."""


class Post(Header, frozen=True):
    """What one member tells all others of its generation while they form the dense process group: addresses, mostly."""

    worker: WorkerNumber
    key: PostKey
    value: PostValue
    """Gloo's address among 128 workers takes 1.2 kB, NCCL's id 128 bytes"""


class Leave(Header, frozen=True):
    """A worker asks to go; it flushes with everyone at the next step boundary, then gets Goodbye."""

    worker: Name


class GaveUp(Header, frozen=True):
    """A member waited for others in vain and does not go on with its order."""

    worker: WorkerNumber


class Watch(Header, frozen=True):
    """A worker's second connection, over which Abort reaches it whatever it is doing; sent every second."""

    worker: Name


class ReportArrays(NamedTuple):
    logits: F32
    """of the micro-batch, in the order's sample order"""


class Report(Header, frozen=True):
    """What one worker did in one round."""

    ARRAYS: ClassVar = ReportArrays

    phase: RoundPhase
    worker: WorkerNumber
    seconds: PhaseSeconds
    pulled_bytes: Bytes
    pushed_bytes: Bytes
    reduced_bytes: Bytes = 0
    """sent to other workers to sum the gradients of replicated rows; as many came back at the same time"""
    dense_up_bytes: Bytes = 0
    """of dense weights or their gradients, to shards or in a ring"""
    dense_down_bytes: Bytes = 0
    link_bytes: Bytes = 0
    """moved in transfers whose time is known, both directions"""
    link_seconds: Seconds = 0.0
    """how long these transfers took"""


class Saved(Header, frozen=True):
    """The dense weights are on disk: the answer to a Goodbye that asked for it."""


# ── dispatcher → worker ───────────────────────────────────────────────────────────────────────────────────────────────
class Admitted(Header, frozen=True):
    """A Join was accepted; the worker is in the next generation if it answers with Ready."""


class Welcome(Header, frozen=True):
    """A generation starts: the worker's number in it, and the names of all its members."""

    worker: WorkerNumber
    names: Annotated[tuple[Name, ...], Meta(max_length=MOST_WORKERS)]
    """of the members, by number"""
    cache_rows: Number
    keeps_cache: bool = False
    """whether what the worker has cached is still good; else it starts with an empty cache"""
    uses_hub: bool = False
    """whether shards sum dense gradients; else workers do, in a ring"""
    takes_dense: bool = False
    """whether the shards have newer dense weights than the first member, which takes them before it shares them"""
    starts_anew: bool = False
    """whether the model is the empty one: dense weights begin with their start values"""
    shards: Annotated[tuple[Name, ...], Meta(max_length=MOST_SHARDS)] = ()
    """endpoints of the shards, by number"""


class Abort(Header, frozen=True):
    """The generation is over, whatever the worker is doing: someone is lost. Answered by Ready."""


class Posted(Header, frozen=True):
    """A Post of another member, passed on: workers need no place of their own to meet at."""

    key: PostKey
    value: PostValue


class OrderArrays(NamedTuple):
    """Rows that move, each with its slot, early ones first, and the micro-batch. Nothing of either unless given.

    Orders are most of what a worker hears from the dispatcher, so their numbers are sent as narrow as they fit.
    """

    owned_rows: Rows = NO_I64
    """pushed as value and state"""
    owned_slots: Slots = NO_I32
    part_rows: Rows = NO_I64
    """pushed as this worker's part of the gradient"""
    part_slots: Slots = NO_I32
    full_rows: Rows = NO_I64
    """pulled as value and state"""
    full_slots: Slots = NO_I32
    value_rows: Rows = NO_I64
    """pulled as value alone"""
    value_slots: Slots = NO_I32
    used_slots: Slots = NO_I32
    """those of the micro-batch (rows it alone uses, then shared ones), then those of the batch's replicated rows"""
    positions: Positions = NO_I32
    """per sample and field, the position in used_slots (b×F)"""
    dense: F32 = NO_F32
    """dense inputs (b×N)"""
    labels: Labels = NO_F32


class Early(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many rows of each list the step before does not train: they may move while it does."""

    owned: Number
    """the first so many rows of the list; likewise parts, full and values"""
    parts: Number
    full: Number
    values: Number
    evicted_owned: Number
    """the last so many owned rows, pushed to make room in the cache: nobody waits for them; likewise parts"""
    evicted_parts: Number


NONE_EARLY = Early(0, 0, 0, 0, 0, 0)


class Order(Header, frozen=True):
    """One worker's part of a step or flush. A row's place is (shard, number) = (row % shards, row // shards)."""

    ARRAYS: ClassVar = OrderArrays
    EQUALLY_LONG: ClassVar = (
        ("owned_rows", "owned_slots"),
        ("part_rows", "part_slots"),
        ("full_rows", "full_slots"),
        ("value_rows", "value_slots"),
    )

    phase: RoundPhase
    samples: SampleCount
    """size of the micro-batch"""
    batch: SampleCount
    """size of the whole batch; the loss is divided by it"""
    alone: Number
    """how many of the used slots hold rows that no other worker uses in this step"""
    replicated: Number = 0
    """how many of the used slots, the last ones, hold replicated rows: the same rows in the same order on every worker,
    their gradients summed over all, the optimizer applied by each"""
    early: Early = NONE_EARLY
    gives_dense: bool = False
    """whether the worker first pushes all of the dense weights"""
    dense_pull: DenseForm = NO_DENSE
    """what of them it pulls then"""
    owes_gradient: bool = False
    """whether it pushes its gradient of them at the end; else, with the hub, it changes them itself"""


class Idle(Header, frozen=True):
    """A sign of life from a dispatcher that has nothing else to say."""


class Goodbye(Header, frozen=True):
    """The worker's generation is over and it has no place in the next: exit 0."""

    save_dense: bool
    """whether this worker saves the dense weights before it goes, and confirms it by Saved"""


TO_DISPATCHER = (Join, Ready, Leave, Post, GaveUp, Report, Saved, Watch, Serve)
FROM_DISPATCHER = (Admitted, Welcome, Abort, Posted, Order, Idle, Goodbye, Heard, Refused)


def unencrypted(workers: int) -> ConfigError:
    """Keys are on, and several workers would sum gradients without them."""
    return ConfigError(
        f"{workers} workers sum dense gradients over Gloo or NCCL, which do not encrypt, and curve_folder is set: the "
        "sums would cross the network in the clear; expected one worker, trainer.reduce = 'hub', or "
        "trainer.unencrypted_reduce = true; set it in every process if you trust the network between the workers"
    )

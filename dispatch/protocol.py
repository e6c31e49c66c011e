"""The messages between dispatcher and workers; those of the parameter server are in ps/protocol.py.

Legend: b samples of a micro-batch, F keys a sample, N dense inputs.
"""

from typing import ClassVar

from dispatch.tally import PhaseSeconds
from infra.wire import Header, Refused


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
    seconds: PhaseSeconds
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


TO_DISPATCHER = (Join, Leave, Report)
FROM_DISPATCHER = (Welcome, Order, Idle, Goodbye, Refused)


def ring_moved(workers: int, amount: int) -> int:
    """How much of an all-reduce each worker sends, rounded up; it receives as much at the same time.

    Gloo and NCCL sum in a ring: in 2·(n-1) turns every worker passes on an n-th, first to add up, then to hand out.
    Links carry both directions at once, so what is sent is what the ring keeps a link busy with.
    """
    return -(-2 * (workers - 1) * amount // workers)

"""What the joiner knows: how far it has read both logs, which predictions wait for their label, and the sums.

It is one record, so that a kill at any point neither counts a label twice nor loses one: what came after the record is
read again, from the positions in it.

    FOLDER/joined    MessagePack, then 16 bytes of checksum
"""

import msgspec
import xxhash

from infra.base.errors import NotStored
from infra.base.storage import Storage
from serving.labels.errors import LabelsDamaged
from serving.labels.sums import LabelSums, SnapshotWindow

JOINED = "joined"
CHECKSUM_BYTES = 16


class WaitingPrediction(msgspec.Struct, array_like=True, gc=False):
    """A prediction within its window of time."""

    at_ms: int
    probability: float
    timeline: int = msgspec.field(name="line")
    step: int
    is_labelled: bool = False
    """kept all the same, so that a second label is known to be one"""


class EarlyLabel(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A label that came before its prediction was found in the log."""

    label: int
    at_ms: int
    """of its event"""
    seen_ms: int


class Counts(msgspec.Struct, kw_only=True):
    """What was read, and what could not be joined."""

    predictions: int = 0
    repeated: int = 0
    """predictions under an id that was taken: left out"""
    unknown: int = 0
    """labels of no prediction, or of one that was made too long ago"""
    duplicates: int = 0
    """labels of a prediction that has one: left out"""
    forgotten: int = 0
    """predictions without a label that were let go for want of memory"""
    skipped: int = 0
    """records of either log that retention removed before they were read"""


class JoinState(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Everything that a restart needs."""

    since_ms: int
    """where partitions of the stream are begun"""
    predictions: dict[int, int] = {}
    """offset of the next record by partition, of the log of predictions"""
    events: dict[int, int] = {}
    """the same of the stream"""
    waiting: dict[str, WaitingPrediction] = {}
    """by id, about in the order of their times"""
    early: dict[str, EarlyLabel] = {}
    counts: Counts = msgspec.field(default_factory=Counts)
    total: LabelSums = LabelSums()
    windows: list[SnapshotWindow] = []


def save_state(storage: Storage, state: JoinState) -> None:
    """Durable at return; the counterpart of ``load_state``."""
    content = msgspec.msgpack.encode(state)
    storage.write(JOINED, [content, xxhash.xxh3_128_digest(content)])


def load_state(storage: Storage) -> JoinState | None:
    """What was saved last; None: nothing was. Raises LabelsDamaged, which names the file, for anything else."""
    try:
        stored = bytes(storage.read(JOINED))
        content = stored[:-CHECKSUM_BYTES]
        checksum = stored[-CHECKSUM_BYTES:]
        if checksum != xxhash.xxh3_128_digest(content):
            raise ValueError("its checksum is wrong")
        return msgspec.msgpack.decode(content, type=JoinState)
    except NotStored:
        return None
    except (msgspec.DecodeError, ValueError) as error:
        raise LabelsDamaged(
            f"{storage.where(JOINED)} is damaged: {error}; expected what the joiner of labels wrote; restore it from a "
            "copy, or remove it and count anew"
        ) from error

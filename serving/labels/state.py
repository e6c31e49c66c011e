"""The joiner's state: how far it has read both logs, which predictions wait for their label, and the sums.

It is saved as one record, so that a process killed at any point neither counts a label twice nor loses one: everything
after the record is read again, from the positions in it.

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
    """A labelled prediction is kept, too, so that a second label is recognised as a duplicate."""


class EarlyLabel(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A label that arrived before its prediction was found in the log."""

    label: int
    at_ms: int
    """Time at which its event was appended."""
    seen_ms: int


class Counts(msgspec.Struct, kw_only=True):
    """What was read, and what could not be joined."""

    predictions: int = 0
    repeated: int = 0
    """Predictions under an id that was already used; they are ignored."""
    unknown: int = 0
    """Labels of no known prediction, or of one that was made too long ago."""
    duplicates: int = 0
    """Labels of a prediction that already has one; they are ignored."""
    forgotten: int = 0
    """Predictions without a label that were dropped to limit memory."""
    skipped: int = 0
    """Records of either log that retention removed before they were read."""


class JoinState(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Everything that a restart needs."""

    since_ms: int
    """Time from which new partitions of the stream are read."""
    predictions: dict[int, int] = {}
    """Offset of the next record in the log of predictions, by partition."""
    events: dict[int, int] = {}
    """Offset of the next record in the stream, by partition."""
    waiting: dict[str, WaitingPrediction] = {}
    """Waiting predictions by id, roughly in the order of their times."""
    early: dict[str, EarlyLabel] = {}
    counts: Counts = msgspec.field(default_factory=Counts)
    total: LabelSums = LabelSums()
    windows: list[SnapshotWindow] = []


def save_state(storage: Storage, state: JoinState) -> None:
    """Saves the state, durably; the counterpart of ``load_state``."""
    content = msgspec.msgpack.encode(state)
    storage.write(JOINED, [content, xxhash.xxh3_128_digest(content)])


def load_state(storage: Storage) -> JoinState | None:
    """The state that was saved last; None if there is none. Raises LabelsDamaged, which names the file."""
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

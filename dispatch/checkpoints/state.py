"""The dispatcher's part of a checkpoint: what it needs, besides the rows and the journal, to continue after its step.

What was *decided* is ahead of what is *trained*, so the two halves are taken at two moments: the first when the
checkpoint is begun, before another step is decided; the second when the flush after its step is complete. The index is
not included: it is rebuilt from the keys in the shards' files (``load_index``), so that there is one source of truth.

On disk it is one safetensors file: the arrays and, as metadata, everything else as JSON, in which an array is
represented by its name.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, get_args
from uuid import uuid4

import msgspec
import numpy as np
import safetensors.numpy
import xxhash
from numpy.typing import NDArray

from dispatch.checkpoints.gate import GateState
from dispatch.commands.desired import Desired
from dispatch.journal.answers import CommandAnswer
from dispatch.placement.arrays import I64, U64
from dispatch.placement.capacity.hub_or_ring import HubOrRingState
from dispatch.placement.capacity.link_costs import LinkState
from dispatch.placement.capacity.set_times import KnownSet
from dispatch.placement.rows.expiry import StepTime
from dispatch.placement.rows.pruning import PrunerState
from dispatch.progress.accounts import AccountsState
from dispatch.progress.drift import DriftState
from dispatch.progress.over_time import OverTimeState
from dispatch.progress.times import DecisionTimesState
from infra.base.errors import NotStored
from infra.base.storage import Storage
from ingest.batches.absent import FieldCounts
from ingest.streams.position import Position
from ps.checkpoints.files import read_index, write_chunks
from ps.checkpoints.manifest import CheckpointManifest
from ps.errors import CheckpointDamaged
from ps.protocol import CHECKPOINT_ON_DISK, FilePart

STATE = "state"
"""Entry of the metadata."""


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided up to a step; taken before the next one is decided."""

    step: int
    generation: int
    positions: dict[int, Position]
    """Positions after the step, of every known partition."""
    samples: int
    """Samples of all steps up to it, from which the rest of --samples follows."""
    rows: int
    """Number of rows assigned, including free ones."""
    forgotten: int = 0
    """Keys forgotten."""
    rare: int = 0
    """Samples' keys that were rare."""
    expiry: tuple[StepTime, ...] = ()
    """How far event time had come at earlier steps, if keys are forgotten by it."""
    pruning: PrunerState | None = None
    """What rounds of pruning depend on, if rows can be pruned."""
    are_new_keys_bare: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether a new key would begin with all chunks pruned, if rows have any."""
    live_share: float = 1.0
    """Share of the chunks of rows that are not pruned; 1 for whole rows."""
    dead_letters: int = 0
    skipped: int = 0
    """Events skipped."""
    omitted: int = 0
    """Negatives that down-sampling has left out."""
    newest_event_seconds: float = 0.0
    """Event time of the newest sample, in seconds since 1970; 0: not known."""
    fields: FieldCounts | None = None
    """Which fields the samples had."""
    decisions: DecisionTimesState | None = None
    answers: tuple[CommandAnswer, ...] = ()
    """Answers to commands that were carried out: their records may be trimmed."""
    desired: Desired = Desired()
    """What people want of the run."""


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """The results of training up to a step; taken when its flush is complete, before the next step is."""

    accounts: AccountsState
    links: dict[str, LinkState]
    """Link states by worker."""
    sets: tuple[KnownSet, ...] = ()
    """How long steps of each set of workers took."""
    ring_sets: tuple[KnownSet, ...] = ()
    """The same in a ring that the clock chose."""
    hub_or_ring: HubOrRingState = HubOrRingState()
    """What is known of hub and ring."""
    over_time: OverTimeState | None = None
    """Quality in windows and slices; None in checkpoints of earlier releases."""
    drift: DriftState | None = None
    """Changes of the click rate and of fields; None in those, too."""


class DispatcherState(msgspec.Struct, frozen=True):
    """The dispatcher's part of a checkpoint."""

    checkpoint: int = msgspec.field(name=CHECKPOINT_ON_DISK)
    """Number of the checkpoint."""
    decided: Decided
    trained: Trained
    gate: GateState = GateState()
    """State of the gate, including this checkpoint."""


# ── one record, written and read ──────────────────────────────────────────────────────────────────────────────────────
def save_state(state: DispatcherState) -> bytes:
    """The content of a file; the counterpart of ``load_state``."""
    arrays: dict[str, NDArray[Any]] = {}

    def name_of(array: Any) -> str:
        assert isinstance(array, np.ndarray)
        name = f"array-{len(arrays)}"
        arrays[name] = array
        return name

    text = msgspec.json.encode(state, enc_hook=name_of).decode()
    return safetensors.numpy.save(arrays, {STATE: text})


def load_state(content: bytes) -> DispatcherState:
    """Parses the content of a file; raises ValueError if it was not written by ``save_state``."""
    try:
        arrays = safetensors.numpy.load(content)
        text = _metadata(content)[STATE]
    except (safetensors.SafetensorError, KeyError, IndexError) as error:
        raise ValueError(f"no state is in it: {error!r}") from error

    def array_of(kind: Any, name: str) -> NDArray[Any]:
        array = arrays.get(name)
        dtype = get_args(get_args(kind)[1])[0]
        if array is None or array.dtype != dtype:
            raise ValueError(f"{name} is not an array of {dtype.__name__}")
        return array

    return msgspec.json.decode(text, type=DispatcherState, dec_hook=array_of)


def _metadata(content: bytes) -> Mapping[str, str]:
    """Metadata of a safetensors file: its header is JSON after its length, 8 bytes."""
    length = int.from_bytes(content[:8], "little")
    return dict(msgspec.json.decode(content[8 : 8 + length])["__metadata__"])


# ── in storage ────────────────────────────────────────────────────────────────────────────────────────────────────────
def write_state(storage: Storage, state: DispatcherState) -> FilePart:
    """Writes the state, which is durable at return; the counterpart of ``read_state``."""
    name = f"{state.checkpoint:08d}/dispatcher-{uuid4().hex}.safetensors"
    return write_chunks(storage, name, [save_state(state)], rows=0)


def read_state(storage: Storage, manifest: CheckpointManifest) -> DispatcherState:
    """The dispatcher's part of a checkpoint; raises CheckpointDamaged, which names the file, if it has changed."""
    part = manifest.dispatcher
    where = storage.where(manifest.dispatcher.name)
    hint = "expected the file as it was written; go back to another checkpoint, or restore it from a copy"
    try:
        content = bytes(storage.read(part.name))
        if len(content) != part.nbytes or xxhash.xxh3_128_hexdigest(content) != part.checksum:
            raise CheckpointDamaged(f"{where} is damaged: its size or checksum is wrong; {hint}")
        state = load_state(content)
    except NotStored as error:
        raise CheckpointDamaged(f"a file of a checkpoint is missing: {error}") from error
    except ValueError as error:
        raise CheckpointDamaged(f"{where} cannot be read: {error}; {hint}") from error
    found = (state.checkpoint, state.decided.step)
    expected = (manifest.number, manifest.step)
    if found != expected:
        raise CheckpointDamaged(f"{where} is of checkpoint {found[0]} after step {found[1]}; {hint}")
    if manifest.rows != state.decided.rows:
        raise CheckpointDamaged(
            f"{where} is of a model of {state.decided.rows} rows, and shards saved {manifest.rows}; {hint}"
        )
    return state


class SavedKeys(NamedTuple):
    """What the dispatcher needs of the rows of a checkpoint.

    Legend: R row numbers.
    """

    keys_R: U64
    """The key of each row; FREE for the number of a forgotten key."""
    last_steps_R: I64
    """The step that last changed it."""


def load_index(storage: Storage, manifest: CheckpointManifest) -> SavedKeys:
    """Keys and last steps of a checkpoint's rows, by row number; nothing else of its files is read.

    Raises CheckpointDamaged unless each row has one. Numbers and keys are verified; last steps are verified by the
    shards, which read whole files.
    """
    rows = manifest.rows
    shards = len(manifest.shards)
    keys = np.zeros(rows, np.uint64)
    last_steps = np.zeros(rows, np.int64)
    is_known = np.zeros(rows, np.bool_)
    for shard in manifest.shards:
        for file in shard.files:
            numbers_K, keys_K, last_steps_K = read_index(storage, file)
            rows_K = numbers_K * shards + shard.shard
            if numbers_K.size and not (numbers_K.min() >= 0 and rows_K.max() < rows):
                raise CheckpointDamaged(
                    f"{storage.where(file.name)} holds row {rows_K.max()} and the checkpoint has {rows}; expected "
                    "rows below "
                    "that; go back to another checkpoint"
                )
            keys[rows_K], last_steps[rows_K], is_known[rows_K] = keys_K, last_steps_K, True
    if missing := rows - int(np.count_nonzero(is_known)):
        raise CheckpointDamaged(
            f"checkpoint {manifest.number} has no key for {missing} of its {rows} rows, first row "
            f"{int(is_known.argmin())}; "
            "expected each row once; go back to another checkpoint"
        )
    return SavedKeys(keys, last_steps)

"""The manifest of a checkpoint: which files it consists of. It is written last; without it the checkpoint does not
exist.

    checkpoints/00000007.json                 the manifest of checkpoint 7
        00000007/shard-0-UNIQUE.safetensors   rows of shard 0 that changed since checkpoint 6, and its dense weights
        00000007/base-0-UNIQUE.safetensors    all rows of shard 0, merged from files of earlier checkpoints
        00000007/dispatcher-UNIQUE.safetensors

A file is written once, under a unique name, and never changed; checkpoints share files. A manifest is a line of JSON
followed by a line with its checksum.
"""

import re

import msgspec
import xxhash

from infra.base.errors import NotStored
from infra.base.storage import Storage
from ps.columns import KeptColumns, may_keep
from ps.config import RowConfig
from ps.errors import CheckpointDamaged
from ps.protocol import FilePart


class ShardPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One shard's part of a checkpoint."""

    shard: int
    rows: int
    """Rows that the shard held."""
    files: tuple[FilePart, ...]
    """Files, oldest first: a base and changes to it. If several files hold a row, the last one counts. The dense
    weights are in the last file.
    """


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether the model of a checkpoint may be served; its files are needed by later checkpoints either way."""

    reasons: tuple[str, ...] = ()
    """Reasons to hold it back; none: it is good."""

    @property
    def is_good(self) -> bool:
        return not self.reasons


class CheckpointFigures(msgspec.Struct, frozen=True):
    """The figures that the verdict is based on, and how new the events are that the model has learnt from.

    They are for people to read: figures written by another version of Freshet are ignored.
    """

    samples: int = 0
    """Number of most recent samples that the figures are based on."""
    logloss: float = 0.0
    """Logloss of predictions made before training on the sample."""
    calibration: float = 1.0
    """Predicted clicks divided by clicks."""
    changed_share: float = 0.0
    """Share of rows that changed since the checkpoint before."""
    average_changed_share: float = 0.0
    live_share: float = 1.0
    """Share of the chunks of rows that are not pruned; 1 for whole rows."""
    non_finite: int = 0
    """Values of rows and dense weights that are not finite."""
    newest_event_seconds: float = 0.0
    """Event time of the newest sample that is not dated in the future, in seconds since 1970; 0: not known."""
    reference_step: int = -1
    """Step of the served snapshot that scored the newest samples; -1: none did, and the verdict is
    based on averages.
    """
    compared_samples: int = 0
    """Number of samples that the figures below are based on."""
    reference_logloss: float = 0.0
    excess_logloss: float = 0.0
    """Logloss of the model minus that of the reference on the same samples."""
    auc: float = 0.0
    """AUC on the newest samples if there was no comparison; 0: not defined."""
    reference_auc: float = 0.0
    clicks: int = 0
    predicted_clicks: float = 0.0
    expected_clicks: float = 0.0
    """Clicks that the reference predicted."""


class CheckpointManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model after one step, as a list of files."""

    run: str
    number: int
    """Number of the checkpoint, from 1."""
    step: int
    """The step after which the checkpoint was taken."""
    generation: int
    """The generation that took it."""
    at_seconds: float
    """When it was taken, in seconds since 1970."""
    shards: tuple[ShardPart, ...]
    """Parts by shard number; row r of the run is number r // n on shard r % n of these n."""
    dispatcher: FilePart
    is_publication: bool = False
    """Whether it was taken only to be served; such checkpoints are kept for a short time."""
    timeline: int = msgspec.field(name="line", default=0)
    """Number of times that steps had been discarded and decided again; a snapshot is named (timeline, step)."""
    verdict: Verdict = Verdict()
    figures: CheckpointFigures = CheckpointFigures()
    are_new_keys_bare: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether training would begin a new key with all chunks pruned, as there is no memory for them; not in the file if
    rows have no chunks.
    """
    columns: KeptColumns | msgspec.UnsetType = msgspec.UNSET
    """The embedding columns that rows have kept; not in the file if they have all."""

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)


def kept_columns(manifest: CheckpointManifest, rows: RowConfig) -> KeptColumns:
    """The columns that rows have kept, empty if they have all. Raises CheckpointDamaged for those they cannot have."""
    kept = manifest.columns or ()
    if kept and not may_keep(rows, kept):
        raise CheckpointDamaged(
            f"rows of checkpoint {manifest.number} have kept {len(kept)} columns from {kept[0]} to {kept[-1]}; "
            f"expected as many of each of the {rows.chunks} chunks of {rows.dim} columns, ascending; use the settings "
            "that the checkpoint was taken with, or another checkpoint"
        )
    return kept


MANIFEST = re.compile(r"(\d{8,})\.json")
CHECKSUM_LINE = 33
"""Length of the checksum line in bytes: 32 hex digits and a newline."""


def manifest_name(number: int) -> str:
    return f"{number:08d}.json"


def write_manifest(storage: Storage, manifest: CheckpointManifest) -> FilePart:
    """Writes the manifest, durably, which makes the checkpoint exist. The counterpart of ``read_manifest``."""
    text = msgspec.json.encode(manifest) + b"\n"
    content = text + xxhash.xxh3_128_hexdigest(text).encode() + b"\n"
    name = manifest_name(manifest.number)
    storage.write(name, [content])
    return FilePart(name, len(content), xxhash.xxh3_128_hexdigest(content))


def read_manifest(storage: Storage, number: int) -> CheckpointManifest:
    """Reads a manifest; raises CheckpointDamaged, which names the file, unless it is what was written."""
    where = storage.where(manifest_name(number))
    try:
        content = bytes(storage.read(manifest_name(number)))
        text = content[:-CHECKSUM_LINE]
        checksum = content[-CHECKSUM_LINE:]
        if checksum != xxhash.xxh3_128_hexdigest(text).encode() + b"\n":
            raise CheckpointDamaged(
                f"{where} is damaged: its checksum is wrong; expected a checkpoint's manifest as it was written; go "
                "back to "
                "another checkpoint, or restore the file from a copy"
            )
        manifest = msgspec.json.decode(text, type=CheckpointManifest)
    except NotStored as error:
        raise CheckpointDamaged(f"checkpoint {number} does not exist: {error}") from error
    except msgspec.DecodeError as error:
        raise CheckpointDamaged(
            f"{where} cannot be read: {error}; expected a checkpoint's manifest; was it written by another version?"
        ) from error
    if manifest.number != number:
        raise CheckpointDamaged(
            f"{where} is the manifest of checkpoint {manifest.number}; expected {number}; restore it from a copy"
        )
    return manifest


def manifest_numbers(storage: Storage) -> list[int]:
    """The numbers of all checkpoints that exist, damaged or not, ascending."""
    found = (MANIFEST.fullmatch(name) for name in storage.names())
    return sorted(int(match[1]) for match in found if match)

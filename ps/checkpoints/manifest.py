"""What a checkpoint consists of: the manifest, which is written last. What has no manifest does not exist.

    checkpoints/00000007.json                 the manifest of checkpoint 7
        00000007/shard-0-UNIQUE.safetensors   rows of shard 0 that changed since checkpoint 6, and its dense weights
        00000007/base-0-UNIQUE.safetensors    all rows of shard 0, merged from files of earlier checkpoints
        00000007/dispatcher-UNIQUE.safetensors

A file is written once, under a name of its own, and never changed; checkpoints share files. A manifest is JSON and, in
a line of its own, a checksum of it.
"""

import re

import msgspec
import xxhash

from infra.base.errors import NotStored
from infra.base.storage import Storage
from ps.errors import CheckpointDamaged
from ps.protocol import FilePart


class ShardPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One shard's part of a checkpoint."""

    shard: int
    rows: int
    """that it held"""
    files: tuple[FilePart, ...]
    """oldest first: a base and changes to it; of a row that several hold, the last counts; the dense weights are in the
    last one"""


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether the model of a checkpoint may be served; it is part of the chain of files either way."""

    reasons: tuple[str, ...] = ()
    """to hold it back; none: it is good"""

    @property
    def is_good(self) -> bool:
        return not self.reasons


class CheckpointFigures(msgspec.Struct, frozen=True):
    """What the verdict looked at, and how new the events are that the model has learnt from.

    People read them: figures that another version of Freshet has written are left out.
    """

    samples: int = 0
    """the most recent ones, that the figures are about"""
    logloss: float = 0.0
    """of predictions made before training on the sample"""
    calibration: float = 1.0
    """predicted clicks over clicks"""
    changed_share: float = 0.0
    """of rows, since the checkpoint before"""
    average_changed_share: float = 0.0
    non_finite: int = 0
    """values of rows and dense weights"""
    newest_event_seconds: float = 0.0
    """event time of the newest sample that is not dated ahead of the clock, since 1970; 0: not known"""
    reference_step: int = -1
    """of the version that was served and has scored the newest samples; -1: none has, and the verdict is by averages"""
    compared_samples: int = 0
    """that the figures below are about"""
    reference_logloss: float = 0.0
    excess_logloss: float = 0.0
    """of the model, above that of the reference on the same samples"""
    auc: float = 0.0
    """of the newest samples where nobody has compared; 0: not defined"""
    reference_auc: float = 0.0
    clicks: int = 0
    predicted_clicks: float = 0.0
    expected_clicks: float = 0.0
    """by the reference"""


class CheckpointManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model after one step, in files."""

    run: str
    number: int
    """from 1"""
    step: int
    """the model is as it was after it"""
    generation: int
    """that took it"""
    at_seconds: float
    """since 1970"""
    shards: tuple[ShardPart, ...]
    """by number; row r of the run is number r // n on shard r % n of these n"""
    dispatcher: FilePart
    is_publication: bool = False
    """whether it was taken only to be served: such checkpoints are kept for a short time"""
    timeline: int = msgspec.field(name="line", default=0)
    """how often steps had been decided anew before; a version of the model is (timeline, step)"""
    verdict: Verdict = Verdict()
    figures: CheckpointFigures = CheckpointFigures()

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)


MANIFEST = re.compile(r"(\d{8,})\.json")
CHECKSUM_LINE = 33
"""bytes: 32 hex digits and a line's end"""


def manifest_name(number: int) -> str:
    return f"{number:08d}.json"


def write_manifest(storage: Storage, manifest: CheckpointManifest) -> FilePart:
    """Makes a checkpoint exist: durable at return. The counterpart of ``read_manifest``."""
    text = msgspec.json.encode(manifest) + b"\n"
    content = text + xxhash.xxh3_128_hexdigest(text).encode() + b"\n"
    name = manifest_name(manifest.number)
    storage.write(name, [content])
    return FilePart(name, len(content), xxhash.xxh3_128_hexdigest(content))


def read_manifest(storage: Storage, number: int) -> CheckpointManifest:
    """What a checkpoint consists of; raises CheckpointDamaged, which names the file, unless it is what was written."""
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
    """Of all checkpoints that exist, damaged or not, ascending."""
    found = (MANIFEST.fullmatch(name) for name in storage.names())
    return sorted(int(match[1]) for match in found if match)

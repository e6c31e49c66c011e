"""What a cut consists of: the manifest, which is written last. What has no manifest does not exist.

    cuts/00000007.json                         the manifest of cut 7
         00000007/shard-0-UNIQUE.safetensors   rows of shard 0 that changed since the cut before, and its dense weights
         00000007/base-0-UNIQUE.safetensors    all rows of shard 0, merged from files of cuts before
         00000007/dispatcher-UNIQUE.safetensors

A file is written once, under a name of its own, and never changed; cuts share files.
"""

import msgspec

from ps.protocol import FilePart


class ShardPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One shard's part of a cut."""

    shard: int
    rows: int
    """that it held"""
    files: tuple[FilePart, ...]
    """oldest first: a base and changes to it; of a row that several hold, the last counts; the dense weights are in the
    last one"""


class CutManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

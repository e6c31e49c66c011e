"""Which version people want served: one small file beside the checkpoints, so that it works with training and SQL down.

    checkpoints/serving.json    {"pinned": 7, "released": [9]}

The checkpoint that is pinned is kept (``dispatch.checkpoints.retention``). Servers look at the file several times a
second. A missing file means: the newest version that is good.
"""

import msgspec

from infra.base.errors import NotStored
from infra.base.storage import Storage
from ps.checkpoints.manifest import CheckpointManifest
from ps.errors import CheckpointDamaged

CHOICE = "serving.json"


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What people want served."""

    pinned: int | None = None
    """the checkpoint that is served until it is unpinned, whatever its verdict; None: the newest good one"""
    released: tuple[int, ...] = ()
    """checkpoints that may be served although their verdict holds them back"""
    actor: str = ""
    """who wanted this"""
    reason: str = ""
    at_seconds: float = 0.0
    """since 1970"""

    def allows(self, manifest: CheckpointManifest) -> bool:
        """Whether a version may be served without being pinned: it is good, or a person has released it."""
        return manifest.verdict.is_good or manifest.number in self.released


def read_choice(storage: Storage) -> Choice:
    """What is wanted; raises CheckpointDamaged for a file that is none of ours."""
    try:
        return msgspec.json.decode(bytes(storage.read(CHOICE)), type=Choice)
    except NotStored:
        return Choice()
    except msgspec.DecodeError as error:
        raise CheckpointDamaged(
            f"{storage.where(CHOICE)} cannot be read: {error}; expected which version is to be served; write it anew "
            "with 'freshet snapshots pin NUMBER' or 'freshet snapshots unpin'"
        ) from error


def write_choice(storage: Storage, choice: Choice) -> None:
    """Durable at return; the counterpart of ``read_choice``."""
    storage.write(CHOICE, [msgspec.json.encode(choice) + b"\n"])

"""Which snapshot people want served: one small file next to the checkpoints, which works without training and SQL.

    checkpoints/serving.json    {"pinned": 7, "released": [9]}

The pinned checkpoint is kept (``dispatch.checkpoints.retention``). Servers read the file several times a second. If the
file is missing, the newest good snapshot is served.
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
    """The checkpoint that is served until it is unpinned, whatever its verdict; None: the newest good one."""
    released: tuple[int, ...] = ()
    """Checkpoints that may be served although their verdict holds them back."""
    actor: str = ""
    """Who made this choice."""
    reason: str = ""
    at_seconds: float = 0.0
    """Time of the choice, in seconds since 1970."""

    def allows(self, manifest: CheckpointManifest) -> bool:
        """Whether a snapshot may be served without being pinned: it is good, or a person has released it."""
        return manifest.verdict.is_good or manifest.number in self.released


def read_choice(storage: Storage) -> Choice:
    """The current choice; raises CheckpointDamaged for a file that cannot be read."""
    try:
        return msgspec.json.decode(bytes(storage.read(CHOICE)), type=Choice)
    except NotStored:
        return Choice()
    except msgspec.DecodeError as error:
        raise CheckpointDamaged(
            f"{storage.where(CHOICE)} cannot be read: {error}; expected the choice of what is served; write it again "
            "with 'freshet snapshots pin NUMBER' or 'freshet snapshots unpin'"
        ) from error


def write_choice(storage: Storage, choice: Choice) -> None:
    """Writes the choice, which is durable at return; the counterpart of ``read_choice``."""
    storage.write(CHOICE, [msgspec.json.encode(choice) + b"\n"])

"""What each server serves: a small file per server next to the checkpoints, for retention and for restarts.

    checkpoints/served-serve-1.json    {"cut": 7, "line": 0, "step": 210, …}

A server writes its file when the snapshot that it serves changes, every few seconds at most, and otherwise every hour.
A server that has been silent for a day no longer keeps a checkpoint alive.
"""

import re

import msgspec
import structlog

from infra.base.errors import NotStored
from infra.base.storage import PART, Storage
from ps.protocol import CHECKPOINT_ON_DISK

SERVED = re.compile(r"served-(.+)\.json")
SILENT_SECONDS = 86_400.0
"""Time since its last record after which a server counts as gone."""


class ServedRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The snapshot that one server serves."""

    checkpoint: int = msgspec.field(name=CHECKPOINT_ON_DISK)
    timeline: int = msgspec.field(name="line")
    step: int
    is_pinned: bool = False
    """Whether a person had pinned it; an older one may follow then."""
    at_seconds: float = 0.0
    """When this was written, in seconds since 1970."""


def write_served(storage: Storage, server: str, record: ServedRecord) -> None:
    """Writes a record, which is durable at return; the counterpart of ``read_served``."""
    storage.write(_name(server), [msgspec.json.encode(record) + b"\n"])


def read_served(storage: Storage, server: str) -> ServedRecord | None:
    """What a server served last; None: nothing, or the file cannot be read, which is logged."""
    try:
        return msgspec.json.decode(bytes(storage.read(_name(server))), type=ServedRecord)
    except NotStored:
        return None
    except msgspec.DecodeError as error:
        hint = "what a server served last is not known; its next record replaces the file"
        structlog.get_logger().warning(hint, file=storage.where(_name(server)), reason=str(error))
        return None


def remove_unfinished(storage: Storage, server: str) -> None:
    """Removes the remains of an interrupted write; for the server itself."""
    for name in storage.names(f"{_name(server)}."):
        if name.endswith(PART):
            storage.delete(name)


def served_now(storage: Storage, now_seconds: float) -> list[ServedRecord]:
    """What servers serve, without those that have been silent for a day."""
    servers = (match[1] for match in map(SERVED.fullmatch, storage.names()) if match)
    records = (read_served(storage, server) for server in servers)
    return [each for each in records if each is not None and now_seconds - each.at_seconds < SILENT_SECONDS]


def _name(server: str) -> str:
    return f"served-{server}.json"

"""What each server serves: a small file of its own beside the checkpoints, so that retention keeps it and a restart
knows it.

    checkpoints/served-serve-1.json    {"cut": 7, "line": 0, "step": 210, …}

A server writes its file when what it serves has changed, every few seconds at most, and again every hour while it
stays: one that has been silent for a day keeps nothing any more.
"""

import re

import msgspec
import structlog

from infra.base.errors import NotStored
from infra.base.storage import PART, Storage
from ps.protocol import CHECKPOINT_ON_DISK

SERVED = re.compile(r"served-(.+)\.json")
SILENT_SECONDS = 86_400.0
"""after its last record, that a server counts as gone"""


class ServedRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one server serves."""

    checkpoint: int = msgspec.field(name=CHECKPOINT_ON_DISK)
    timeline: int = msgspec.field(name="line")
    step: int
    is_pinned: bool = False
    """whether a person had pinned it: then an older one may follow"""
    at_seconds: float = 0.0
    """when this was written, since 1970"""


def write_served(storage: Storage, server: str, record: ServedRecord) -> None:
    """Durable at return; the counterpart of ``read_served``."""
    storage.write(_name(server), [msgspec.json.encode(record) + b"\n"])


def read_served(storage: Storage, server: str) -> ServedRecord | None:
    """What a server served last; None: nothing, or the file is none of ours, which is logged."""
    try:
        return msgspec.json.decode(bytes(storage.read(_name(server))), type=ServedRecord)
    except NotStored:
        return None
    except msgspec.DecodeError as error:
        hint = "what a server served last is not known; its next record replaces the file"
        structlog.get_logger().warning(hint, file=storage.where(_name(server)), reason=str(error))
        return None


def remove_unfinished(storage: Storage, server: str) -> None:
    """Removes what is left of a record whose writing broke off; for the server itself."""
    for name in storage.names(f"{_name(server)}."):
        if name.endswith(PART):
            storage.delete(name)


def served_now(storage: Storage, now_seconds: float) -> list[ServedRecord]:
    """What servers serve, those left out that have been silent for a day."""
    servers = (match[1] for match in map(SERVED.fullmatch, storage.names()) if match)
    records = (read_served(storage, server) for server in servers)
    return [each for each in records if each is not None and now_seconds - each.at_seconds < SILENT_SECONDS]


def _name(server: str) -> str:
    return f"served-{server}.json"

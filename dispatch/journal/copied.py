"""A journal that is also kept elsewhere, frame by frame, so that a run outlives the machine that its folder is on.

A frame counts once both have it: it is written to the folder first, then to the copy, and nobody is told of it before
that. So the folder is at most one frame ahead, which was never acknowledged, and the copy is the truth: when a journal
is opened, its folder is made equal to it (``dispatch/journal/restoring.py``).

One folder continues a journal at a time: it has a name of its own, under which it owns the copy. A folder that is made
from the copy gets a new name, and may replace the owner it was made from; the old folder is refused from then on, as
soon as it appends something, or is opened again.

    FOLDER/journal/owner.json       the folder's name, and the owner that it may replace
"""

import os
from pathlib import Path
from uuid import uuid4

import msgspec

from dispatch.errors import JournalTaken
from infra.base.files import naming, writing_whole
from ingest.errors import LogCorrupt, LogError, OwnerReplaced
from ingest.log.frames import sync_folder

OWNER_FILE = "owner.json"


class Owner(msgspec.Struct, frozen=True):
    """Under which name a folder continues its journal."""

    name: str
    after: str = ""
    """The owner that it was made from, which it may replace."""


def owner_of(folder: Path) -> Owner:
    """The owner that a journal's folder is; it gets a name the first time."""
    return _read_owner(folder) or name_owner(folder)


def owner_name(folder: Path) -> str:
    """The name under which a folder owns its journal; empty if it has none."""
    owner = _read_owner(folder)
    return "" if owner is None else owner.name


def _read_owner(folder: Path) -> Owner | None:
    path = folder / OWNER_FILE
    with naming(path, LogError):
        try:
            return msgspec.json.decode(path.read_bytes(), type=Owner)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise LogCorrupt(
                f"{path} is damaged: {error}; expected the name under which the folder owns its journal; restore the "
                "run into a new folder ('freshet restore')"
            ) from error


def name_owner(folder: Path, after: str = "") -> Owner:
    """Gives a folder a new name, durably."""
    owner = Owner(f"{os.uname().nodename}:{folder.absolute()}:{uuid4().hex[:8]}", after)
    write_file(folder / OWNER_FILE, msgspec.json.encode(owner))
    return owner


def write_file(path: Path, content: bytes) -> None:
    """Writes a small file of the folder, durably."""
    with writing_whole(path) as temporary, temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def taken(folder: Path, error: OwnerReplaced) -> JournalTaken:
    return JournalTaken(
        f"the run in {folder.parent} goes on elsewhere: {error}; expected this folder to be the last to do so; "
        "leave it, or restore the run into a new folder ('freshet restore'), which stops the other one"
    )

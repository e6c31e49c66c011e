"""Who reads a journal, and how far: what all readers have stored may be dropped.

A reader has a name that stays the same across restarts, such as that of its database. The cursors are written to a file
whenever the journal is trimmed, so a restarted dispatcher waits for all readers. After a crash the file is too old at
worst, and then more is kept than necessary. A reader that has not asked for a day is forgotten, with a warning.
"""

import threading
from pathlib import Path
from time import time

import msgspec
import structlog

from infra.base.errors import FileUnusable
from infra.base.process import write_whole

FILE = "readers.json"
"""Name of the file in the folder of the journal."""
FORGOTTEN_SECONDS = 86_400.0
MOST_READERS = 1000
"""Most readers; beyond that, those that have not asked for longest are forgotten."""


class ReaderStanding(msgspec.Struct, frozen=True):
    """One reader."""

    cursor: int
    """It has stored everything up to here."""
    at_seconds: float
    """When it said so, in seconds since 1970."""


class JournalReaders:
    """The readers of one journal. Two threads use it: one answers them, one trims."""

    def __init__(self, folder: Path, newest: int) -> None:
        """newest: the end of the journal; a cursor beyond it belongs to another journal."""
        self._file = folder / FILE
        self._turn = threading.Lock()
        for torn in folder.glob(f".{FILE}.*"):  # of a dispatcher that was killed while it wrote
            torn.unlink(missing_ok=True)
        known = _load(self._file)
        self._readers = {name: reader for name, reader in known.items() if reader.cursor <= newest}

    def note(self, name: str, cursor: int) -> None:
        """Notes that a reader asks for what follows a cursor. One without a name keeps nothing,
        and is not waited for.
        """
        if name:
            with self._turn:
                self._readers.pop(name, None)
                self._readers[name] = ReaderStanding(cursor, time())
                while len(self._readers) > MOST_READERS:
                    del self._readers[next(iter(self._readers))]

    @property
    def floor(self) -> int:
        """Cursor up to which every reader has stored everything; 0 if there is none."""
        with self._turn:
            return min((reader.cursor for reader in self._readers.values()), default=0)

    @property
    def slowest(self) -> str:
        """The name of the reader that has read least; empty if there is none."""
        with self._turn:
            return min(self._readers, key=lambda name: self._readers[name].cursor, default="")

    def forget_silent(self) -> int:
        """Forgets readers that have been silent for long, and stores the cursors of the others; returns the floor."""
        now = time()
        log = structlog.get_logger()
        with self._turn:
            for name in [name for name, reader in self._readers.items() if now - reader.at_seconds > FORGOTTEN_SECONDS]:
                hint = "a reader of the journal is forgotten; what it has not read may be dropped"
                log.warning(hint, reader=name, read_up_to=self._readers.pop(name).cursor)
            written = msgspec.json.encode(self._readers).decode()
        try:
            write_whole(self._file, written)
        except FileUnusable as error:
            log.warning("the cursors of the journal's readers could not be stored", reason=str(error))
        return self.floor


def _load(file: Path) -> dict[str, ReaderStanding]:
    """The stored cursors; none if the file is missing or cannot be read: everything is kept then
    until somebody asks.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, ReaderStanding])
    except (OSError, msgspec.DecodeError):
        return {}

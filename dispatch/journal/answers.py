"""The answer to a command: the same for every repetition of the command, and from every dispatcher."""

import msgspec

CURSOR_ON_DISK = "version"
"""what checkpoints call a cursor: they are read by later releases, and were written by earlier ones"""


class CommandAnswer(msgspec.Struct, frozen=True):
    """The answer to a command that was carried out."""

    id: str
    """Id of the command."""
    text: str
    """What has happened, for people."""
    cursor: int = msgspec.field(name=CURSOR_ON_DISK)
    """Cursor of the command in the journal."""

"""The answer to a command: the same for every repetition of the command, and from every dispatcher."""

import msgspec


class CommandAnswer(msgspec.Struct, frozen=True):
    """The answer to a command that was carried out."""

    id: str
    """Id of the command."""
    text: str
    """What has happened, for people."""
    version: int
    """Version of the journal that contains the command."""

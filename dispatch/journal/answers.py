"""What a command was answered: the same to whoever sends it again, and whichever dispatcher is asked."""

import msgspec


class CommandAnswer(msgspec.Struct, frozen=True):
    """The answer to a command that was carried out."""

    id: str
    """of the command"""
    text: str
    """what has happened, for people"""
    version: int
    """of the journal, with the command in it"""

"""A journal as others read it over the wire: record after record, each with its version.

A version is the number of a record's frame in the journal plus one, so a journal of so many frames has that version,
and a reader that has taken everything up to one asks for what comes after it. Assignments stay where they are: a page
holds what people look at.
"""

from dataclasses import dataclass

from dispatch.journal.records import AnyRecord


@dataclass(frozen=True)
class Versioned:
    """A record and the version of the journal that has it."""

    version: int
    record: AnyRecord


@dataclass(frozen=True)
class FeedPage:
    """Records that follow a cursor, oldest first, all those of one version together."""

    after: int
    """the cursor that was asked for; higher if what followed it has been trimmed from the journal"""
    next: int
    """the cursor to ask for next"""
    newest: int
    """version of the journal"""
    records: tuple[Versioned, ...]
    """steps without their assignments and hot rows"""
    journal: str = ""
    """its identity; if the cursor is of another journal, the page begins where this one does; empty: not known"""


def cursor_in(journal: str, newest: int, cursor: int, known: str) -> int:
    """Where a reader goes on in a journal of this identity and version: at its beginning, if it has read another one.

    known: the journal that its cursor is of; empty: it does not know, and then a cursor that is too high tells.
    """
    is_other = journal != known if journal and known else cursor > newest
    return 0 if is_other else cursor

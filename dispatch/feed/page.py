"""A journal as others read it over the wire: record after record, each with its cursor.

A cursor is a position in the journal: the number of frames before it. The cursor of a record is the position right
after its frame, and a reader that has stored everything up to a cursor asks for what follows it. Assignments stay where
they are: a page holds what people look at.
"""

from dataclasses import dataclass

from dispatch.journal.records import AnyRecord


@dataclass(frozen=True)
class PlacedRecord:
    """A record and its cursor."""

    cursor: int
    record: AnyRecord


@dataclass(frozen=True)
class FeedPage:
    """Records that follow a cursor, oldest first, all those of one frame together."""

    after: int
    """the cursor that was asked for; higher if what followed it has been trimmed from the journal"""
    next: int
    """the cursor to ask for next"""
    newest: int
    """the end of the journal"""
    records: tuple[PlacedRecord, ...]
    """steps without their assignments and hot rows"""
    journal: str = ""
    """its identity; if the cursor is of another journal, the page begins where this one does; empty: not known"""


def cursor_in(journal: str, newest: int, cursor: int, known: str) -> int:
    """Where a reader goes on in a journal of this identity and length: at its beginning, if it has read another one.

    known: the journal that its cursor is of; empty: it does not know, and then a cursor that is too high tells.
    """
    is_other = journal != known if journal and known else cursor > newest
    return 0 if is_other else cursor

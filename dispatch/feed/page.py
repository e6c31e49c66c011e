"""The form in which a journal is read over the wire: record after record, each with its cursor.

A cursor is a position in the journal: the number of frames before it. The cursor of a record is the position right
after its frame, and a reader that has stored everything up to a cursor asks for what follows it. Assignments are not
sent: a page holds only what people look at.
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
    """Records that follow a cursor, oldest first; the records of one frame are always together."""

    after: int
    """The cursor that was asked for; higher if the records after it have been trimmed from the journal."""
    next: int
    """The cursor to ask for next."""
    newest: int
    """Cursor of the end of the journal."""
    records: tuple[PlacedRecord, ...]
    """Records; steps come without their assignments and hot rows."""
    journal: str = ""
    """Identity of the journal; empty if not known. If the cursor belongs to another journal, the page begins at the
    beginning of this one.
    """


def cursor_in(journal: str, newest: int, cursor: int, known: str) -> int:
    """Returns the cursor at which a reader continues; the beginning of the journal if its cursor belongs to another
    one.

    journal, newest: identity and end of the journal. known: identity of the journal that the cursor belongs to; if it
    is empty, only a cursor beyond the end shows that it belongs to another one.
    """
    is_other = journal != known if journal and known else cursor > newest
    return 0 if is_other else cursor

"""Records of the journal in a window of time: all of them, or of very many as many as a chart can show."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, Select, func, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from api.store.rows import StoredEvent
from api.store.tables import EventRow
from infra.web.store.paging import columns, to_row

MARGIN_SECONDS = 1e-3
"""By how much the first part begins earlier, so that the oldest record is in it."""


class Window(NamedTuple):
    """A period of time, in seconds since 1970; None: no end on that side."""

    first: float | None
    last: float | None

    def holds(self) -> list[ColumnElement[bool]]:
        """Conditions on the time of an event."""
        first = [] if self.first is None else [EventRow.at >= self.first]
        return first if self.last is None else [*first, EventRow.at <= self.last]


async def read_newest(
    connection: AsyncConnection, run: str, kinds: Sequence[str], window: Window, limit: int
) -> tuple[StoredEvent, ...]:
    """The newest records of these kinds, or of all if there are none, newest first."""
    query = columns(StoredEvent, EventRow).where(EventRow.run == run, *window.holds())
    if kinds:
        query = query.where(EventRow.kind.in_(kinds))
    ordered = query.order_by(EventRow.cursor.desc(), EventRow.place.desc()).limit(limit)
    return tuple(to_row(StoredEvent, row) for row in await connection.execute(ordered))


async def read_thinned(
    connection: AsyncConnection, run: str, kind: str, window: Window, points: int
) -> tuple[StoredEvent, ...]:
    """Records of one kind, newest first; of more than that many points, the newest in each of so many parts."""
    inside = (EventRow.run == run, EventRow.kind == kind, *window.holds())
    some = select(EventRow.cursor).where(*inside).limit(points + 1).subquery()
    facts = select(
        select(func.count()).select_from(some).scalar_subquery(),
        select(func.min(EventRow.at)).where(*inside).scalar_subquery(),
        select(func.max(EventRow.at)).where(*inside).scalar_subquery(),
    )
    found, first, last = (await connection.execute(facts)).one()
    query = columns(StoredEvent, EventRow).where(*inside)
    if found > points:
        chosen = _newest_in_each(run, kind, first - MARGIN_SECONDS, last, points)
        query = query.where(EventRow.cursor.in_(chosen))
    ordered = query.order_by(EventRow.cursor.desc(), EventRow.place.desc()).limit(points)
    return tuple(to_row(StoredEvent, row) for row in await connection.execute(ordered))


def _newest_in_each(run: str, kind: str, first: float, last: float, points: int) -> Select[tuple[int]]:
    """Cursors: one look into the index for each part, however many records there are."""
    numbers = select(literal(1).label("number")).cte("parts", recursive=True)
    numbers = numbers.union_all(select(numbers.c.number + 1).where(numbers.c.number < points))
    seconds = (last - first) / points
    until = literal(first) + literal(seconds) * numbers.c.number
    newest = select(EventRow.cursor).where(EventRow.run == run, EventRow.kind == kind)
    newest = newest.where(EventRow.at > until - literal(seconds), EventRow.at <= until + literal(MARGIN_SECONDS))
    newest = newest.order_by(EventRow.at.desc(), EventRow.cursor.desc()).limit(1)
    return select(newest.correlate(numbers).scalar_subquery()).select_from(numbers)

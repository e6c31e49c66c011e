"""Records of the journal in a window of time: all of them, or of very many as many as a chart can show.

Each kind is read by itself, from the index of kinds and times: how much is read depends on how many records are shown,
and not on how many others there are.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, func, literal, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from api.store.rows import StoredEvent
from api.store.tables import EventRow
from infra.web.store.paging import columns

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
    inside = (EventRow.run == run, *window.holds())
    if not kinds:
        query = columns(StoredEvent, EventRow).where(*inside)
        query = query.order_by(EventRow.cursor.desc(), EventRow.place.desc()).limit(limit)
        return tuple(StoredEvent(*row) for row in (await connection.execute(query)).all())
    newest = [_newest(columns(StoredEvent, EventRow).where(*inside, EventRow.kind == kind), limit) for kind in kinds]
    return (await _read_all(connection, newest))[:limit]


async def read_thinned(
    connection: AsyncConnection, run: str, kinds: Sequence[str], window: Window, points: int
) -> tuple[StoredEvent, ...]:
    """Records, newest first: of each kind with more than that many points, the newest in each of so many parts."""
    inside = {kind: (EventRow.run == run, EventRow.kind == kind, *window.holds()) for kind in kinds}
    facts = union_all(*(_facts(kind, inside[kind], points) for kind in kinds))
    queries = []
    for kind, found, first, last in (await connection.execute(facts)).all():
        query = columns(StoredEvent, EventRow)
        if found > points:
            chosen = _newest_in_each(run, kind, first - MARGIN_SECONDS, last, points)
            # Records are found by their cursor. With a plain comparison of kinds, SQLite would search all of the window
            # in the index of kinds and times.
            query = query.where(EventRow.run == run, EventRow.cursor.in_(chosen), EventRow.kind.concat("") == kind)
            query = query.where(*window.holds())
        else:
            query = query.where(*inside[kind])
        queries.append(_newest(query, points))
    return await _read_all(connection, queries)


def _newest(query: Select[Any], limit: int) -> Select[Any]:
    """The newest rows of a query, as a query that can be part of a union."""
    ordered = query.order_by(EventRow.at.desc(), EventRow.cursor.desc(), EventRow.place.desc())
    return select(ordered.limit(limit).subquery())


async def _read_all(connection: AsyncConnection, queries: Sequence[Select[Any]]) -> tuple[StoredEvent, ...]:
    """What several queries find, newest first."""
    found = [StoredEvent(*row) for row in (await connection.execute(union_all(*queries))).all()]
    return tuple(sorted(found, key=lambda event: (event.cursor, event.place), reverse=True))


def _facts(kind: str, inside: Sequence[ColumnElement[bool]], points: int) -> Select[Any]:
    """A kind, how many records there are of it, or just above the points if there are more, and when the first and the
    last were.
    """
    some = select(EventRow.cursor).where(*inside).limit(points + 1).subquery()
    return select(
        literal(kind),
        select(func.count()).select_from(some).scalar_subquery(),
        select(func.min(EventRow.at)).where(*inside).scalar_subquery(),
        select(func.max(EventRow.at)).where(*inside).scalar_subquery(),
    )


def _newest_in_each(run: str, kind: str, first: float, last: float, points: int) -> Select[tuple[int]]:
    """Cursors: one look into the index for each part, however many records there are."""
    numbers = select(literal(1).label("number")).cte(f"parts_{kind}", recursive=True)
    numbers = numbers.union_all(select(numbers.c.number + 1).where(numbers.c.number < points))
    seconds = (last - first) / points
    until = literal(first) + literal(seconds) * numbers.c.number
    newest = select(EventRow.cursor).where(EventRow.run == run, EventRow.kind == kind)
    newest = newest.where(EventRow.at > until - literal(seconds), EventRow.at <= until + literal(MARGIN_SECONDS))
    newest = newest.order_by(EventRow.at.desc(), EventRow.cursor.desc()).limit(1)
    return select(newest.correlate(numbers).scalar_subquery()).select_from(numbers)

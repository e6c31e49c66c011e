"""Records of the journal in a window of time: all of them, or of very many as many as a chart can show.

Each kind is read by itself, from the index of kinds and times: how much is read depends on how many records are shown,
and not on how many others there are. Statements are made once for every number of kinds: to make one takes as long as
its answer.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Executable,
    Float,
    Integer,
    Row,
    Select,
    String,
    bindparam,
    func,
    literal,
    select,
    union_all,
)
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

    @property
    def ends(self) -> tuple[str, ...]:
        """The names of the ends that it has."""
        return tuple(name for name, at in self._asdict().items() if at is not None)


class _Kind(NamedTuple):
    """A kind of records in a statement; its name and the window are values that the statement is executed with."""

    number: int
    ends: tuple[str, ...]
    """The ends that the window has."""

    @property
    def run(self) -> ColumnElement[bool]:
        return EventRow.run == bindparam("run", type_=String)

    @property
    def name(self) -> ColumnElement[str]:
        return bindparam(f"wanted_{self.number}", type_=String)

    @property
    def window(self) -> list[ColumnElement[bool]]:
        """Conditions on the time of an event."""
        return _in_window(self.ends)

    @property
    def conditions(self) -> list[ColumnElement[bool]]:
        return [self.run, EventRow.kind == self.name, *self.window]


async def read_newest(
    connection: AsyncConnection, run: str, kinds: Sequence[str], window: Window, limit: int
) -> tuple[StoredEvent, ...]:
    """The newest records of these kinds, or of all if there are none, newest first."""
    values = _values(run, kinds, window) | {"most": limit}
    found = await connection.execute(_newest_query(len(kinds), window.ends), values)
    return _newest_first(found.all())[:limit]


async def read_thinned(
    connection: AsyncConnection, run: str, kinds: Sequence[str], window: Window, points: int
) -> tuple[StoredEvent, ...]:
    """Records, newest first: of each kind with more than that many points, the newest in each of so many parts."""
    values = _values(run, kinds, window) | {"most": points, "one_more": points + 1}
    is_thinned = [False] * len(kinds)
    for number, found, oldest, newest in (
        await connection.execute(_facts_query(len(kinds), window.ends), values)
    ).all():
        if found > points:
            is_thinned[number] = True
            begin = oldest - MARGIN_SECONDS
            values |= {f"begin_{number}": begin, f"seconds_{number}": (newest - begin) / points}
    thinned = await connection.execute(_thinned_query(tuple(is_thinned), window.ends), values)
    return _newest_first(thinned.all())


def _values(run: str, kinds: Sequence[str], window: Window) -> dict[str, Any]:
    """What statements are executed with."""
    named = {f"wanted_{number}": kind for number, kind in enumerate(kinds)}
    return {"run": run, **named, **{end: getattr(window, end) for end in window.ends}}


def _newest_first(rows: Sequence[Row[Any]]) -> tuple[StoredEvent, ...]:
    found = [to_row(StoredEvent, row) for row in rows]
    return tuple(sorted(found, key=lambda event: (event.cursor, event.place), reverse=True))


# ── statements ────────────────────────────────────────────────────────────────────────────────────────────────────────
@lru_cache(maxsize=256)
def _newest_query(kinds: int, ends: tuple[str, ...]) -> Executable:
    """The newest records of so many kinds, or of all if there are none."""
    query = columns(StoredEvent, EventRow)
    if not kinds:
        query = query.where(EventRow.run == bindparam("run", type_=String), *_in_window(ends))
        return query.order_by(EventRow.cursor.desc(), EventRow.place.desc()).limit(bindparam("most", type_=Integer))
    return union_all(*(_newest(query.where(*_Kind(number, ends).conditions)) for number in range(kinds)))


@lru_cache(maxsize=256)
def _facts_query(kinds: int, ends: tuple[str, ...]) -> Executable:
    """By kind, its number, how many records there are of it, or one more than the points if there are more, and when
    the first and the last were.
    """
    return union_all(*(_facts(_Kind(number, ends)) for number in range(kinds)))


@lru_cache(maxsize=256)
def _thinned_query(is_thinned: tuple[bool, ...], ends: tuple[str, ...]) -> Executable:
    """The records of each kind: all of them, or those that stand for many."""
    queries = []
    for number, is_many in enumerate(is_thinned):
        kind = _Kind(number, ends)
        query = columns(StoredEvent, EventRow)
        if is_many:
            # Records are found by their cursor. With a plain comparison of kinds, SQLite would search all of the window
            # in the index of kinds and times.
            query = query.where(kind.run, EventRow.cursor.in_(_newest_in_each(kind)))
            query = query.where(EventRow.kind.concat("") == kind.name, *kind.window)
        else:
            query = query.where(*kind.conditions)
        queries.append(_newest(query))
    return union_all(*queries)


def _in_window(ends: tuple[str, ...]) -> list[ColumnElement[bool]]:
    first = [EventRow.at >= bindparam("first", type_=Float)] if "first" in ends else []
    return [*first, EventRow.at <= bindparam("last", type_=Float)] if "last" in ends else [*first]


def _newest(query: Select[Any]) -> Select[Any]:
    """The newest rows of a query, as a query that can be part of a union."""
    ordered = query.order_by(EventRow.at.desc(), EventRow.cursor.desc(), EventRow.place.desc())
    return select(ordered.limit(bindparam("most", type_=Integer)).subquery())


def _facts(kind: _Kind) -> Select[Any]:
    some = select(EventRow.cursor).where(*kind.conditions).limit(bindparam("one_more", type_=Integer)).subquery()
    return select(
        literal(kind.number),
        select(func.count()).select_from(some).scalar_subquery(),
        select(func.min(EventRow.at)).where(*kind.conditions).scalar_subquery(),
        select(func.max(EventRow.at)).where(*kind.conditions).scalar_subquery(),
    )


def _newest_in_each(kind: _Kind) -> Select[tuple[int]]:
    """Cursors: one look into the index for each part, however many records there are."""
    numbers = select(literal(1).label("number")).cte(f"parts_{kind.number}", recursive=True)
    following = numbers.c.number + 1
    numbers = numbers.union_all(select(following).where(numbers.c.number < bindparam("most", type_=Integer)))
    seconds = bindparam(f"seconds_{kind.number}", type_=Float)
    until = bindparam(f"begin_{kind.number}", type_=Float) + seconds * numbers.c.number
    newest = select(EventRow.cursor).where(kind.run, EventRow.kind == kind.name)
    newest = newest.where(EventRow.at > until - seconds, EventRow.at <= until + literal(MARGIN_SECONDS))
    newest = newest.order_by(EventRow.at.desc(), EventRow.cursor.desc()).limit(1)
    return select(newest.correlate(numbers).scalar_subquery()).select_from(numbers)

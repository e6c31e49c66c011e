"""Readings of a window of time, thinned out in the database: few rows are read, however long the window is.

It is two statements, made once: to make one takes as long as its answer.
"""

import math
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Executable, Float, ScalarSelect, Select, bindparam, func, literal, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from api.store.rows import StoredReading
from api.store.tables import ReadingRow
from infra.web.store.paging import columns

FINE = 10
"""Seconds between two readings of the latest three hours."""
COARSE = 120
"""Seconds between two readings of the latest thirty days."""
STORED_LEVELS = (FINE, COARSE)
MARGIN_SECONDS = 1e-3
"""By how much the fine readings begin before their first bucket, so that one at its very beginning is among them."""


class _Ends(NamedTuple):
    """When the first and the last bucket of a level begin; a level without readings begins never and ended always."""

    oldest: float = math.inf
    newest: float = -math.inf

    @staticmethod
    def of(level: int, oldest: int | None, newest: int | None) -> "_Ends":
        return _Ends() if oldest is None or newest is None else _Ends(level * oldest, level * newest)


class _Part(NamedTuple):
    """Readings of one level: of so many consecutive buckets, the newest."""

    level: int
    buckets: int


async def read_readings(
    connection: AsyncConnection, run: str, first: float, last: float, points: int
) -> tuple[StoredReading, ...]:
    """Readings after first, up to last, oldest first: about as many as points, from the finest level that reaches."""
    ends = (await connection.execute(_ends_query(), {"run": run})).one()
    fine = _Ends.of(FINE, *ends[:2])
    coarse = _Ends.of(COARSE, *ends[2:])
    oldest, newest = min(fine.oldest, coarse.oldest), max(fine.newest, coarse.newest)
    if newest < oldest:
        return ()
    seconds = (min(last, newest) - max(first, oldest)) / points
    between = (fine.oldest if seconds < COARSE else coarse.newest) - MARGIN_SECONDS
    windows = {COARSE: (first, min(last, between)), FINE: (max(first, between), last)}
    parts = []
    values: dict[str, float | str] = {"run": run}
    for level, (begin, end) in windows.items():
        if begin < end:
            parts.append(_Part(level, max(1, int(seconds // level))))
            values |= {f"first_{level}": begin, f"last_{level}": end}
            values |= {f"first_bucket_{level}": int(begin // level), f"last_bucket_{level}": int(end // level)}
    if not parts:
        return ()
    found = (await connection.execute(_readings_query(tuple(parts)), values)).all()
    return tuple(sorted(map(StoredReading._make, found), key=lambda reading: reading.at))


@cache
def _ends_query() -> Executable:
    """By level, the first and the last bucket; they are found in the index, without a look at those between them."""
    return select(*(_end(level, function) for level in STORED_LEVELS for function in (func.min, func.max)))


def _end(level: int, function: Callable[..., Any]) -> ScalarSelect[Any]:
    query = select(function(ReadingRow.bucket)).where(ReadingRow.run == bindparam("run"), ReadingRow.level == level)
    return query.scalar_subquery()


@lru_cache(maxsize=256)
def _readings_query(parts: tuple[_Part, ...]) -> Executable:
    return union_all(*map(_level_query, parts))


def _level_query(part: _Part) -> Select[Any]:
    """The readings of one level; the index alone says which they are."""
    level, buckets = part
    here = (ReadingRow.run == bindparam("run"), ReadingRow.level == level)
    inside = ReadingRow.bucket.between(
        bindparam(f"first_bucket_{level}", type_=BigInteger), bindparam(f"last_bucket_{level}", type_=BigInteger)
    )
    group = ReadingRow.bucket // literal(buckets, literal_execute=True)
    chosen = select(func.max(ReadingRow.bucket)).where(*here, inside).group_by(group)
    after, until = bindparam(f"first_{level}", type_=Float), bindparam(f"last_{level}", type_=Float)
    query = columns(StoredReading, ReadingRow).where(*here, ReadingRow.bucket.in_(chosen))
    return query.where(ReadingRow.at > after, ReadingRow.at <= until)

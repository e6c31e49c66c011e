"""Readings of a window of time, thinned out in the database: few rows are read, however long the window is."""

import math
from typing import NamedTuple

from sqlalchemy import func, literal, select
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


async def read_readings(
    connection: AsyncConnection, run: str, first: float, last: float, points: int
) -> tuple[StoredReading, ...]:
    """Readings after first, up to last, oldest first: about as many as points, from the finest level that reaches."""
    fine = await _ends(connection, run, FINE)
    coarse = await _ends(connection, run, COARSE)
    oldest, newest = min(fine.oldest, coarse.oldest), max(fine.newest, coarse.newest)
    if newest < oldest:
        return ()
    seconds = (min(last, newest) - max(first, oldest)) / points
    between = (fine.oldest if seconds < COARSE else coarse.newest) - MARGIN_SECONDS
    return (
        *await _read_level(connection, run, COARSE, first, min(last, between), seconds),
        *await _read_level(connection, run, FINE, max(first, between), last, seconds),
    )


async def _ends(connection: AsyncConnection, run: str, level: int) -> _Ends:
    """Both are found in the index, without a look at the readings between them."""
    buckets = select(func.min(ReadingRow.bucket), func.max(ReadingRow.bucket))
    found = (await connection.execute(buckets.where(ReadingRow.run == run, ReadingRow.level == level))).one()
    return _Ends() if found[0] is None else _Ends(level * found[0], level * found[1])


async def _read_level(
    connection: AsyncConnection, run: str, level: int, first: float, last: float, seconds: float
) -> list[StoredReading]:
    """One reading of a level for so many seconds, the newest of each part; the index alone says which they are."""
    if first >= last:
        return []
    here = (ReadingRow.run == run, ReadingRow.level == level)
    inside = ReadingRow.bucket.between(int(first // level), int(last // level))
    part = ReadingRow.bucket // literal(max(1, int(seconds // level)), literal_execute=True)
    chosen = select(func.max(ReadingRow.bucket)).where(*here, inside).group_by(part)
    query = columns(StoredReading, ReadingRow).where(*here, ReadingRow.bucket.in_(chosen))
    query = query.where(ReadingRow.at > first, ReadingRow.at <= last).order_by(ReadingRow.bucket)
    return [StoredReading(*row) for row in (await connection.execute(query)).all()]

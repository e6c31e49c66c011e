"""The history of steps, downsampled to the number of points that is requested.

The number of rows that are read is bounded, however long a run is. They come from the finest level that needs at most
sixteen of them for a point, or from a coarser level if retention has removed the finer rows.
"""

from dataclasses import fields
from typing import NamedTuple

from sqlalchemy import ScalarSelect, select
from sqlalchemy.ext.asyncio import AsyncConnection

from api.store.projection import aggregates
from api.store.rows import StepPoint
from api.store.tables import FANOUT, LEVELS, StepRow

MOST_POINTS = 1000


class LevelChoice(NamedTuple):
    """The rows that the points are made from."""

    level: int
    width: int
    """Number of rows of that level in one point."""


async def read_steps(
    connection: AsyncConnection, run: str, first: int | None, last: int | None, points: int
) -> tuple[StepPoint, ...]:
    """Trained steps from first to last, in at most that many points."""
    query = select(_end(run, 1, newest=True), *(_end(run, level, newest=False) for level in LEVELS))
    ends, *firsts = (await connection.execute(query)).one()
    oldest: dict[int, int | None] = dict(zip(LEVELS, firsts, strict=True))
    begins = oldest[LEVELS[-1]]
    if begins is None or ends is None:
        return ()
    first, last = max(begins, begins if first is None else first), min(ends, ends if last is None else last)
    if first > last:
        return ()
    choice = choose(oldest, first, last, max(1, min(points, MOST_POINTS)))
    sums = aggregates(choice.width)
    points_query = select(*(sums[field.name].label(field.name) for field in fields(StepPoint)))
    between = StepRow.bucket.between(first // choice.level, last // choice.level)
    points_query = (
        points_query.where(StepRow.run == run, StepRow.level == choice.level, StepRow.steps > 0, between)
        .group_by(sums["bucket"])
        .order_by(sums["bucket"])
    )
    return tuple(StepPoint(*row) for row in (await connection.execute(points_query)).all())


def choose(oldest: dict[int, int | None], first: int, last: int, points: int) -> LevelChoice:
    """The finest level with few enough rows that reaches the first step, and the number of its rows per point."""
    begins = oldest[LEVELS[-1]]
    for level in LEVELS:
        rows = last // level - first // level + 1
        goes_back = (found := oldest[level]) is not None and (found <= first or found == begins)
        if goes_back and (rows <= FANOUT * points or level == LEVELS[-1]):
            break
    # Buckets are grouped by multiples of the width, so the first and the last point may have fewer rows.
    width = -(-rows // (points - 1)) if points > 1 else last // level + 1
    return LevelChoice(level, width)


def _end(run: str, level: int, newest: bool) -> ScalarSelect[int]:
    """The first step of a level's oldest row, or the last step of its newest row; null if it has no rows."""
    column = StepRow.last_step if newest else StepRow.first_step
    order = StepRow.bucket.desc() if newest else StepRow.bucket.asc()
    query = select(column).where(StepRow.run == run, StepRow.level == level, StepRow.steps > 0)
    return query.order_by(order).limit(1).scalar_subquery()

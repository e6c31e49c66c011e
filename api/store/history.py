"""The history of steps, downsampled to the number of points that is requested.

The number of rows that are read is bounded, however long a run is. They come from the finest level that needs at most
sixteen of them for a point, or from a coarser level if retention has removed the finer rows.
"""

from functools import cache, lru_cache
from typing import NamedTuple

from sqlalchemy import Executable, ScalarSelect, bindparam, select
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
    ends, *firsts = (await connection.execute(_ends_query(), {"run": run})).one()
    oldest: dict[int, int | None] = dict(zip(LEVELS, firsts, strict=True))
    begins = oldest[LEVELS[-1]]
    if begins is None or ends is None:
        return ()
    first, last = max(begins, begins if first is None else first), min(ends, ends if last is None else last)
    if first > last:
        return ()
    choice = choose(oldest, first, last, max(1, min(points, MOST_POINTS)))
    rows = {"run": run, "level": choice.level, "first": first // choice.level, "last": last // choice.level}
    found = await connection.execute(_points_query(choice.width), rows)
    return tuple(map(StepPoint._make, found.all()))


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


@cache
def _ends_query() -> Executable:
    """The last step of a run and, by level, the first one. It is made once: that takes as long as its answer."""
    return select(_end(1, newest=True), *(_end(level, newest=False) for level in LEVELS))


@lru_cache(maxsize=256)
def _points_query(width: int) -> Executable:
    """The points of so many rows each between two buckets of a level of a run."""
    sums = aggregates(width)
    query = select(*(sums[name].label(name) for name in StepPoint._fields))
    rows = (StepRow.run == bindparam("run"), StepRow.level == bindparam("level"), StepRow.steps > 0)
    between = StepRow.bucket.between(bindparam("first"), bindparam("last"))
    return query.where(*rows, between).group_by(sums["bucket"]).order_by(sums["bucket"])


def _end(level: int, newest: bool) -> ScalarSelect[int]:
    """The first step of a level's oldest row, or the last step of its newest row; null if it has no rows."""
    column = StepRow.last_step if newest else StepRow.first_step
    order = StepRow.bucket.desc() if newest else StepRow.bucket.asc()
    query = select(column).where(StepRow.run == bindparam("run"), StepRow.level == level, StepRow.steps > 0)
    return query.order_by(order).limit(1).scalar_subquery()

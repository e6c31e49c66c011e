"""Keeps the rows of an earlier run under another name, when a new run has started under the same name.

The new run gets the name, because people use it to ask about what is running now. The rows of the earlier run are moved
in small transactions, so that other writers do not wait long; rows of the new run are written only after that. A crash
in between leaves a run of the new name with cursor 0, and the next attempt continues with it. Commands and the audit
trail are not moved: they record what people requested under that name, and when.
"""

from itertools import count
from typing import Any
from uuid import uuid4

import structlog
from sqlalchemy import Table, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from api.store.projection import NEW_RUN, enter
from api.store.tables import (
    AlphaChangeRow,
    CheckpointRow,
    EventRow,
    FaultRow,
    GenerationRow,
    ReadingRow,
    RunRow,
    StepRow,
)
from dispatch.feed.page import FeedPage, cursor_in
from infra.web.store.engine import Database
from infra.web.store.tables import SqlTable

BATCH = 10_000
"""The most rows that one transaction moves."""
LONGEST_NAME = 50
"""Number of characters of the run's name that the new name begins with; the whole must be valid in a path of the API.
"""
SHOWN_LETTERS = 8
"""Number of letters of the journal's identity in the new name."""
MOVED: tuple[type[SqlTable], ...] = (
    GenerationRow,
    StepRow,
    AlphaChangeRow,
    CheckpointRow,
    FaultRow,
    EventRow,
    ReadingRow,
)
FRESH = NEW_RUN | {"begun_at": None, "ended_at": None}


async def is_replaced(connection: AsyncConnection, run: str, page: FeedPage) -> bool:
    """Whether the rows under this name belong to another journal than the page."""
    chosen = select(RunRow.cursor, RunRow.journal).where(RunRow.name == run).with_for_update()
    found = (await connection.execute(chosen)).one_or_none()
    if found is None or not found.cursor or not page.journal:
        return False
    return cursor_in(page.journal, page.newest, found.cursor, found.journal) == 0


async def set_apart(database: Database, run: str, journal: str) -> None:
    """Moves the rows of a run to another name, so that the run with this journal can use the name."""
    apart = await _begin(database, run, journal)
    if apart is None:
        return
    for table in MOVED:
        while await _move_some(database, table, run, apart):
            pass
    await _finish(database, run, apart, journal)


async def _begin(database: Database, run: str, journal: str) -> str | None:
    """The name that the rows get; None if another process has moved them already."""
    async with database.writing() as connection:
        row = await _lock(connection, run)
        if row is None or row["journal"] == journal:
            return None
        was = row["journal"] or uuid4().hex
        await connection.execute(update(RunRow).where(RunRow.name == run).values(journal=was))
        begun = select(RunRow.name).where(RunRow.journal == was, RunRow.name != run, RunRow.cursor == 0)
        wanted = f"{run[:LONGEST_NAME]}.{was[:SHOWN_LETTERS]}"
        apart = await connection.scalar(begun) or await _free_name(connection, wanted)
        await enter(connection, RunRow, [NEW_RUN | {"name": apart, "journal": was}], replaces=False)
        return str(apart)


async def _free_name(connection: AsyncConnection, wanted: str) -> str:
    """A name that is not in use. If two runs take turns under one name, each is moved aside more than once."""
    for number in count(1):
        name = wanted if number == 1 else f"{wanted}-{number}"
        if await connection.scalar(select(RunRow.name).where(RunRow.name == name)) is None:
            return name
    raise AssertionError("numbers do not end")


async def _move_some(database: Database, table: type[SqlTable], run: str, apart: str) -> int:
    """Moves one batch of rows; returns their number."""
    columns = table.__table__
    assert isinstance(columns, Table)
    keys = [column for column in columns.primary_key if column.name != "run"]
    some = select(*keys).where(columns.c.run == run).limit(BATCH)
    chosen = update(table).where(columns.c.run == run, tuple_(*keys).in_(some)).values(run=apart)
    async with database.writing() as connection:
        return (await connection.execute(chosen)).rowcount


async def _finish(database: Database, run: str, apart: str, journal: str) -> None:
    async with database.writing() as connection:
        row = await _lock(connection, run)
        if row is None or row["journal"] == journal:
            return
        known = {name: value for name, value in row.items() if name != "name"}
        await connection.execute(update(RunRow).where(RunRow.name == apart).values(**known))
        await connection.execute(update(RunRow).where(RunRow.name == run).values(**FRESH, journal=journal))
    hint = "a run began anew under the name of another one, whose rows are kept under a name of their own"
    structlog.get_logger().warning(hint, run=run, kept_as=apart, cursor=row["cursor"])


async def _lock(connection: AsyncConnection, run: str) -> dict[str, Any] | None:
    columns = RunRow.__table__
    found = (await connection.execute(select(columns).where(RunRow.name == run).with_for_update())).one_or_none()
    return None if found is None else dict(found._mapping)

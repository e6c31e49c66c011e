"""Reads and writes of runs in the database."""

from collections.abc import Sequence
from typing import Any, TypeVar

from sqlalchemy import or_, select, update

from api.store.history import read_steps
from api.store.projection import NEW_RUN, enter, project
from api.store.readings import read_readings
from api.store.records import Window, read_newest, read_thinned
from api.store.replaced import is_replaced, set_apart
from api.store.rows import (
    ProjectedJournal,
    StepPoint,
    StoredAlphaChange,
    StoredCheckpoint,
    StoredEvent,
    StoredFault,
    StoredGeneration,
    StoredReading,
    StoredRun,
)
from api.store.tables import AlphaChangeRow, CheckpointRow, EventRow, FaultRow, GenerationRow, ReadingRow, RunRow
from dispatch.feed.page import FeedPage
from infra.web.store.engine import Database
from infra.web.store.paging import MOST_ROWS, Key, columns, read_page, to_row
from infra.web.store.rows import Page
from infra.web.store.values import plain

RowT = TypeVar("RowT")


class RunTables:
    """Everything that is known about runs. Lists are newest first, except runs (by name) and events (oldest first)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def see(self, name: str, folder: str, settings: dict[str, Any], topic: str, journal: str = "") -> StoredRun:
        """Stores a run that was found, or updates its folder and settings.

        ``journal`` is its identity. If the stored run is known to have another journal, nothing is changed.
        """
        known = {"folder": plain(folder), "settings": plain(settings)}
        is_same = or_(RunRow.cursor == 0, RunRow.journal == "", RunRow.journal == journal)
        async with self._database.writing() as connection:
            await enter(connection, RunRow, [NEW_RUN | {"name": name}], replaces=False)
            await connection.execute(update(RunRow).where(RunRow.name == name, is_same).values(**known))
            await connection.execute(
                update(RunRow).where(RunRow.name == name, RunRow.state == "seen").values(topic=plain(topic))
            )
            found = await connection.execute(columns(StoredRun, RunRow).where(RunRow.name == name))
            return to_row(StoredRun, found.one())

    async def cursor(self, run: str) -> int:
        """Cursor up to which the run's journal has been projected; 0 for an unknown run."""
        async with self._database.reading() as connection:
            return await connection.scalar(select(RunRow.cursor).where(RunRow.name == run)) or 0

    async def projected(self, run: str) -> ProjectedJournal:
        """Cursor up to which the run's journal has been projected, with the journal's identity."""
        async with self._database.reading() as connection:
            chosen = select(RunRow.journal, RunRow.cursor).where(RunRow.name == run)
            found = (await connection.execute(chosen)).one_or_none()
            return ProjectedJournal("", 0) if found is None else ProjectedJournal(*found)

    async def project(self, run: str, page: FeedPage) -> int:
        """Projects a page of the journal, rows and cursor in one transaction; returns the cursor to request next.

        Records that were projected before are skipped, so pages may be repeated and may overlap. Rows of another
        journal under
        the same name are moved aside first.
        """
        while True:
            async with self._database.writing() as connection:
                if not await is_replaced(connection, run, page):
                    return await project(connection, run, page)
            await set_apart(self._database, run, page.journal)

    async def get(self, name: str) -> StoredRun | None:
        async with self._database.reading() as connection:
            found = (await connection.execute(columns(StoredRun, RunRow).where(RunRow.name == name))).one_or_none()
            return None if found is None else to_row(StoredRun, found)

    async def list(self, after: str | None = None, limit: int = 100) -> Page[StoredRun]:
        async with self._database.reading() as connection:
            query = columns(StoredRun, RunRow)
            return await read_page(connection, StoredRun, query, [RunRow.name], after, limit, newest_first=False)

    async def generations(self, run: str, after: str | None = None, limit: int = 100) -> Page[StoredGeneration]:
        return await self._page(StoredGeneration, GenerationRow, [GenerationRow.number], run, after, limit)

    async def alpha_changes(self, run: str, after: str | None = None, limit: int = 100) -> Page[StoredAlphaChange]:
        key = [AlphaChangeRow.cursor, AlphaChangeRow.place]
        return await self._page(StoredAlphaChange, AlphaChangeRow, key, run, after, limit)

    async def checkpoints(self, run: str, after: str | None = None, limit: int = 100) -> Page[StoredCheckpoint]:
        return await self._page(StoredCheckpoint, CheckpointRow, [CheckpointRow.number], run, after, limit)

    async def faults(self, run: str, after: str | None = None, limit: int = 100) -> Page[StoredFault]:
        return await self._page(StoredFault, FaultRow, [FaultRow.cursor, FaultRow.place], run, after, limit)

    async def events(self, run: str, after_cursor: int = 0, limit: int = 1000) -> tuple[StoredEvent, ...]:
        """Events after a cursor, oldest first. The events of a frame stay together, even above the limit."""
        limit = max(1, min(limit, MOST_ROWS))
        query = columns(StoredEvent, EventRow).where(EventRow.run == run, EventRow.cursor > after_cursor)
        ordered = query.order_by(EventRow.cursor, EventRow.place)
        async with self._database.reading() as connection:
            found = (await connection.execute(ordered.limit(limit))).all()
            if len(found) == limit:
                last = found[-1]._mapping
                rest = ordered.where(EventRow.cursor == last["cursor"], EventRow.place > last["place"])
                found = [*found, *(await connection.execute(rest)).all()]
            return tuple(to_row(StoredEvent, row) for row in found)

    async def newest_events(self, run: str, kind: str, limit: int = 100) -> tuple[StoredEvent, ...]:
        """Events of one kind, newest first."""
        query = columns(StoredEvent, EventRow).where(EventRow.run == run, EventRow.kind == kind)
        ordered = query.order_by(EventRow.cursor.desc(), EventRow.place.desc()).limit(max(1, min(limit, MOST_ROWS)))
        async with self._database.reading() as connection:
            return tuple(to_row(StoredEvent, row) for row in await connection.execute(ordered))

    async def records(self, run: str, kinds: Sequence[str], window: Window, limit: int) -> tuple[StoredEvent, ...]:
        """Events in a window of time, newest first; ``kinds``: of these alone, or of all if there are none."""
        async with self._database.reading() as connection:
            return await read_newest(connection, run, kinds, window, max(1, min(limit, MOST_ROWS)))

    async def thinned_records(
        self, run: str, kinds: Sequence[str], window: Window, points: int
    ) -> tuple[StoredEvent, ...]:
        """Events of these kinds in all of a window, newest first; of each kind about that many at most."""
        async with self._database.reading() as connection:
            return await read_thinned(connection, run, kinds, window, points)

    async def add_readings(self, run: str, readings: Sequence[StoredReading]) -> None:
        """Stores readings; of those in one bucket, the first stays."""
        rows = [each._asdict() | {"run": run, "bucket": int(each.at // each.level)} for each in readings]
        async with self._database.writing() as connection:
            await enter(connection, ReadingRow, rows, replaces=False)

    async def readings(self, run: str, first: float, last: float, points: int) -> tuple[StoredReading, ...]:
        """Readings after first, up to last, oldest first, in about that many points."""
        async with self._database.reading() as connection:
            return await read_readings(connection, run, first, last, points)

    async def steps(
        self, run: str, first: int | None = None, last: int | None = None, points: int = 500
    ) -> tuple[StepPoint, ...]:
        """Trained steps from first to last, in at most that many points; the outer points may exceed the range."""
        async with self._database.reading() as connection:
            return await read_steps(connection, run, first, last, points)

    async def _page(
        self, kind: type[RowT], table: Any, key: Key, run: str, after: str | None, limit: int
    ) -> Page[RowT]:
        async with self._database.reading() as connection:
            query = columns(kind, table).where(table.run == run)
            return await read_page(connection, kind, query, key, after, limit)

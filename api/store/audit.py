"""The audit trail: who changed what, and who was denied."""

import time
from dataclasses import asdict

from sqlalchemy import insert

from api.store.changes import plain
from api.store.engine import Database
from api.store.paging import columns, read_page
from api.store.rows import NewAudit, Page, StoredAudit
from api.store.tables import AuditRow


class AuditTrail:
    """Entries are added, never changed."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, entry: NewAudit) -> StoredAudit:
        values = plain(asdict(entry)) | {"at": time.time(), "detail": plain(entry.detail or {})}
        async with self._database.writing() as connection:
            added = await connection.execute(insert(AuditRow).values(values).returning(AuditRow.id))
            return StoredAudit(id=added.scalar_one(), **values)

    async def list(self, after: str | None = None, limit: int = 100, run: str | None = None) -> Page[StoredAudit]:
        """Newest first; of a run, or of all."""
        query = columns(StoredAudit, AuditRow)
        if run is not None:
            query = query.where(AuditRow.run == run)
        async with self._database.reading() as connection:
            return await read_page(connection, StoredAudit, query, [AuditRow.id], after, limit)

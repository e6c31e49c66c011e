"""The audit trail in SQL: who changed what, and who was denied."""

from dataclasses import asdict
from typing import Any

from sqlalchemy import insert

from infra.web.store.engine import Database
from infra.web.store.paging import columns, read_page
from infra.web.store.rows import NewAudit, Page, StoredAudit
from infra.web.store.tables import AuditRow
from infra.web.store.values import plain


class AuditTrail:
    """The entries; they are added and never changed."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, *entries: NewAudit) -> None:
        """Adds all entries in one transaction; they are listed in this order."""
        if entries:
            async with self._database.writing() as connection:
                await connection.execute(insert(AuditRow), [_values(entry) for entry in entries])

    async def list(self, after: str | None = None, limit: int = 100, run: str | None = None) -> Page[StoredAudit]:
        """Lists entries, newest first, of one run or of all."""
        query = columns(StoredAudit, AuditRow)
        if run is not None:
            query = query.where(AuditRow.run == run)
        async with self._database.reading() as connection:
            return await read_page(connection, StoredAudit, query, [AuditRow.id], after, limit)


def _values(entry: NewAudit) -> dict[str, Any]:
    values: dict[str, Any] = plain(asdict(entry))
    return values | {"detail": plain(entry.detail or {})}

"""Removes old rows, so that the database does not grow without limit.

Rows are removed in small transactions, so that other writers do not wait long. Coarse levels of steps are kept
forever: a year at a hundred steps a second has 48,000 rows of 65,536 steps.
"""

import time
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Delete, delete, func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from api.store.tables import FANOUT, CheckpointRow, EventRow, ReadingRow, RunRow, StepRow
from infra.web.store.engine import Database
from infra.web.store.tables import AuditRow, TokenRow
from infra.web.store.tokens import LINK_NAME, SESSION_NAME

BATCH = 2000
"""The most rows that one transaction removes."""


@dataclass(frozen=True)
class Retention:
    """How much is kept; None: everything."""

    steps: dict[int, int | None] = field(
        default_factory=lambda: {1: 100_000, 16: 1_600_000, 256: 25_600_000, 4096: None, 65536: None}
    )
    """By level: the number of a run's newest steps whose rows are kept."""
    events: int | None = 100_000
    """Number of events of a run."""
    readings: dict[int, int] = field(default_factory=lambda: {10: 1080, 120: 21_600})
    """By level: the number of a run's newest readings, three hours and thirty days."""
    audit: int | None = 1_000_000
    """Number of audit entries with a token."""
    strangers: int | None = 100_000
    """Number of audit entries without a token; anybody can send such requests."""
    age_seconds: float | None = None
    """Greatest age of events and audit entries."""
    signed_in_seconds: float = 86_400.0
    """How long sign-in links and sessions of the dashboard are listed after they have expired; tokens always are."""


async def prune(database: Database, retention: Retention) -> int:
    """Removes the rows that need not be kept; returns their number."""
    async with database.reading() as connection:
        runs = (await connection.execute(select(RunRow.name))).scalars().all()
    removed = 0
    for run in runs:
        for level, kept in retention.steps.items():
            if kept is not None:
                removed += await _prune_steps(database, run, level, kept)
        removed += await _prune_events(database, run, retention)
        for level, kept in retention.readings.items():
            removed += await _prune_readings(database, run, level, kept)
    removed += await _prune_sessions(database, retention.signed_in_seconds)
    return removed + await _prune_audit(database, retention)


async def _prune_steps(database: Database, run: str, level: int, kept: int) -> int:
    async with database.reading() as connection:
        floor = await _floor(connection, run, level, kept)
        here = (StepRow.run == run, StepRow.level == level)
        oldest = await connection.scalar(select(func.min(StepRow.bucket)).where(*here))
    removed = 0
    while oldest is not None and oldest < floor:
        oldest = min(floor, oldest + BATCH)
        removed += await _execute(database, delete(StepRow).where(*here, StepRow.bucket < oldest))
    return removed


async def _floor(connection: AsyncConnection, run: str, level: int, kept: int) -> int:
    """The oldest bucket that is kept.

    The row of the next level that contains the newest step, or the step of the newest checkpoint, will be recomputed
    from
    this level: when more steps follow, or when the steps after the checkpoint become void. So its rows must stay.
    """
    newest = await connection.scalar(select(func.max(StepRow.last_step)).where(StepRow.run == run, StepRow.level == 1))
    checkpoint = await connection.scalar(
        select(func.max(CheckpointRow.step)).where(CheckpointRow.run == run, CheckpointRow.state == "taken")
    )
    if newest is None:
        return 0
    needed = min(newest, newest if checkpoint is None else checkpoint) // (level * FANOUT) * FANOUT
    return max(0, min((newest + 1 - kept) // level, needed))


async def _prune_events(database: Database, run: str, retention: Retention) -> int:
    key = (EventRow.cursor, EventRow.place)
    removed = 0
    if retention.events is not None:
        newest = select(EventRow.cursor).where(EventRow.run == run).order_by(*(column.desc() for column in key))
        async with database.reading() as connection:
            last = await connection.scalar(newest.offset(retention.events).limit(1))
        if last is not None:
            removed += await _prune_where(database, run, EventRow.cursor <= last)
    if retention.age_seconds is not None:
        removed += await _prune_where(database, run, EventRow.at < time.time() - retention.age_seconds)
    return removed


async def _prune_readings(database: Database, run: str, level: int, kept: int) -> int:
    here = (ReadingRow.run == run, ReadingRow.level == level)
    async with database.reading() as connection:
        newest = await connection.scalar(select(func.max(ReadingRow.bucket)).where(*here))
    if newest is None:
        return 0
    return await _execute(database, delete(ReadingRow).where(*here, ReadingRow.bucket <= newest - kept))


async def _prune_where(database: Database, run: str, is_old: Any) -> int:
    """Removes events, oldest first."""
    old = select(EventRow.cursor, EventRow.place).where(EventRow.run == run, is_old)
    old = old.order_by(EventRow.cursor, EventRow.place).limit(BATCH)
    chosen = tuple_(EventRow.cursor, EventRow.place).in_(old)
    removed = 0
    while count := await _execute(database, delete(EventRow).where(EventRow.run == run, chosen)):
        removed += count
    return removed


async def _prune_sessions(database: Database, kept_seconds: float) -> int:
    expired = TokenRow.expires_at < time.time() - kept_seconds
    return await _execute(database, delete(TokenRow).where(TokenRow.name.in_((LINK_NAME, SESSION_NAME)), expired))


async def _prune_audit(database: Database, retention: Retention) -> int:
    """Removes old entries; those without a token are counted separately, so that they displace no others."""
    removed = 0
    for chosen, kept in (
        (AuditRow.token.is_not(None), retention.audit),
        (AuditRow.token.is_(None), retention.strangers),
    ):
        async with database.reading() as connection:
            oldest = await connection.scalar(select(func.min(AuditRow.id)).where(chosen))
            floor = await _audit_floor(connection, chosen, kept, retention.age_seconds)
        while oldest is not None and oldest < floor:
            oldest = min(floor, oldest + BATCH)
            removed += await _execute(database, delete(AuditRow).where(chosen, AuditRow.id < oldest))
    return removed


async def _audit_floor(
    connection: AsyncConnection, chosen: ColumnElement[bool], kept: int | None, age_seconds: float | None
) -> int:
    """The oldest of these entries that is kept."""
    floor = 0
    if kept is not None:
        newest = select(AuditRow.id).where(chosen).order_by(AuditRow.id.desc()).offset(kept).limit(1)
        floor = (await connection.scalar(newest) or -1) + 1
    if age_seconds is not None:
        old = AuditRow.at < time.time() - age_seconds
        floor = max(floor, (await connection.scalar(select(func.max(AuditRow.id)).where(chosen, old)) or -1) + 1)
    return floor


async def _execute(database: Database, statement: Delete) -> int:
    async with database.writing() as connection:
        return (await connection.execute(statement)).rowcount

"""Projects a page of a journal into the tables.

One transaction: 1. lock the run's row and read its cursor; 2. fold the new records into changes; 3. remove void rows;
4. write the changes; 5. recompute the sums of the steps concerned, level by level; 6. move the cursor. A crash at any
point leaves rows and cursor as they were, and the page is requested again.

Sums are recomputed from the level below, from at most sixteen rows each, and never incremented. So a step that is
trained again or becomes void cannot be counted twice.
"""

from collections.abc import Iterable, Mapping, Sequence
from time import time
from typing import Any

from sqlalchemy import ColumnElement, Table, case, cast, delete, func, insert, literal, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from api.errors import JournalDiffers
from api.store.changes import GAP, Changes, Row, fold
from api.store.tables import (
    FANOUT,
    LEVELS,
    AlphaChangeRow,
    CheckpointRow,
    CommandRow,
    EventRow,
    FaultRow,
    GenerationRow,
    RunRow,
    StepRow,
)
from dispatch.feed.page import FeedPage
from infra.web.store.tables import AuditRow, SqlTable

SUMMED = ("steps", "samples", "clicks", "seconds", "decide_seconds", "moved_bytes")
NEW_RUN: Row = {"folder": "", "topic": "", "settings": {}, "code": "", "state": "seen", "cursor": 0}


async def project(connection: AsyncConnection, run: str, page: FeedPage) -> int:
    """Projects a page; returns the cursor to request next. The connection must be in a transaction for writing."""
    # The row has to exist before it can be locked: two processes may project the first page of a run.
    await enter(connection, RunRow, [NEW_RUN | {"name": run}], replaces=False)
    locked = select(RunRow.cursor, RunRow.state, RunRow.journal).where(RunRow.name == run).with_for_update()
    cursor, state, journal = (await connection.execute(locked)).one()
    if page.newest < cursor:
        raise JournalDiffers(
            f"the journal of run {run} ends at cursor {page.newest}; expected {cursor} or later, which was read "
            "before; its folder was put back to an earlier state: give the run another name, or remove it from the "
            "database"
        )
    named = {"journal": page.journal or journal}
    if page.next <= cursor:
        await connection.execute(update(RunRow).where(RunRow.name == run).values(**named))
        return int(cursor)
    changes = fold(page, cursor, state != "seen", await _last_at(connection, run), time())
    await _remove_void(connection, run, changes)
    await _enter_changes(connection, run, changes)
    await _enter_steps(connection, run, changes)
    moved = update(RunRow).where(RunRow.name == run).values(cursor=page.next, **named, **changes.run)
    await connection.execute(moved)
    return page.next


async def _last_at(connection: AsyncConnection, run: str) -> float | None:
    """Time of the run's newest event. Gaps are left out: their time is when they were found, later than what follows
    them.
    """
    newest = (
        select(EventRow.at)
        .where(EventRow.run == run, EventRow.kind != GAP)
        .order_by(EventRow.cursor.desc(), EventRow.place.desc())
        .limit(1)
    )
    return await connection.scalar(newest)


async def _remove_void(connection: AsyncConnection, run: str, changes: Changes) -> None:
    if (after := changes.checkpoints_void_after) is not None:
        await connection.execute(
            update(CheckpointRow).where(CheckpointRow.run == run, CheckpointRow.step > after).values(state="void")
        )
    if (after := changes.steps_void_after) is not None:
        for level in LEVELS:
            await connection.execute(
                delete(StepRow).where(StepRow.run == run, StepRow.level == level, StepRow.bucket > after // level)
            )


async def _enter_changes(connection: AsyncConnection, run: str, changes: Changes) -> None:
    def of_run(rows: Iterable[Row]) -> list[Row]:
        return [row | {"run": run} for row in rows]

    await enter(connection, GenerationRow, of_run(changes.restated.values()), replaces=False)
    await enter(connection, GenerationRow, of_run(changes.generations.values()))
    await enter(connection, AlphaChangeRow, of_run(changes.alpha_changes))
    await enter(connection, CheckpointRow, of_run(changes.checkpoints.values()))
    await enter(connection, FaultRow, of_run(changes.faults))
    await enter(connection, EventRow, of_run(changes.events))
    for command, answer in changes.settled.items():
        found = await connection.execute(
            update(CommandRow)
            .where(CommandRow.id == command, CommandRow.run == run)
            .values(state="done", outcome="accepted", **answer)
        )
        if not found.rowcount and command in changes.given:
            await connection.execute(insert(AuditRow), of_run([changes.given[command]]))


# ── steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
async def _enter_steps(connection: AsyncConnection, run: str, changes: Changes) -> None:
    touched = list(changes.steps)
    if changes.steps_void_after is not None:
        touched.append(changes.steps_void_after)
    if not touched:
        return
    await _enter_level_1(connection, run, changes.steps.values())
    for level in LEVELS[1:]:
        await _sum_up(connection, run, level, min(touched), max(touched))


async def _enter_level_1(connection: AsyncConnection, run: str, rows: Iterable[Row]) -> None:
    """Writes steps. A step that was decided in an earlier page keeps its α, and its other figures if the record has
    none.
    """
    decided: list[Row] = []
    trained: list[Row] = []
    bare: list[Row] = []
    for row in rows:
        step = row["step"]
        place = {"run": run, "level": 1, "bucket": step, "first_step": step, "last_step": step}
        entered = row | place | {"samples": row["samples"] or 0}
        del entered["step"]
        (bare if row["samples"] is None else trained if row["alpha"] is None else decided).append(entered)
    await enter(connection, StepRow, decided)
    await enter(connection, StepRow, trained, kept=("alpha",))
    await enter(connection, StepRow, bare, kept=[name for name in (bare or [{}])[0] if name != "steps"])


async def _sum_up(connection: AsyncConnection, run: str, level: int, first: int, last: int) -> None:
    """Recomputes those buckets of a level that contain these steps, from the level below."""
    buckets = (first // level, last // level)
    await connection.execute(
        delete(StepRow).where(StepRow.run == run, StepRow.level == level, StepRow.bucket.between(*buckets))
    )
    below = StepRow.bucket.between(buckets[0] * FANOUT, buckets[1] * FANOUT + FANOUT - 1)
    sums = aggregates(FANOUT)
    chosen = select(literal(run), literal(level), *sums.values()).where(
        StepRow.run == run, StepRow.level == level // FANOUT, below, StepRow.steps > 0
    )
    chosen = chosen.group_by(sums["bucket"])
    await connection.execute(insert(StepRow).from_select(["run", "level", *sums], chosen))


def aggregates(buckets: int) -> dict[str, ColumnElement[Any]]:
    """The columns of a row that covers that many consecutive buckets; to be grouped by ``bucket``."""
    with_alpha = case((StepRow.alpha.is_(None), 0), else_=StepRow.steps)
    return {
        "bucket": StepRow.bucket // literal(buckets, literal_execute=True),
        "first_step": func.min(StepRow.first_step),
        "last_step": func.max(StepRow.last_step),
        # in PostgreSQL the sum of integers is a decimal
        **{name: cast(func.sum(column := getattr(StepRow, name)), column.type) for name in SUMMED},
        "loss": case((func.count(StepRow.loss) == func.count(), func.sum(StepRow.loss))),
        "alpha": func.sum(StepRow.alpha * StepRow.steps) / func.nullif(func.sum(with_alpha), 0),
        "first_at": func.min(StepRow.first_at),
        "last_at": func.max(StepRow.last_at),
    }


# ── entering rows ─────────────────────────────────────────────────────────────────────────────────────────────────────
async def enter(
    connection: AsyncConnection,
    into: type[SqlTable],
    rows: Sequence[Mapping[str, Any]],
    replaces: bool = True,
    kept: Sequence[str] = (),
) -> None:
    """Inserts rows. An existing row is replaced except for the columns ``kept``; if not ``replaces``, it stays."""
    if not rows:
        return
    table = into.__table__
    assert isinstance(table, Table)
    keys = [column.name for column in table.primary_key]
    statement = (sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert)(table)
    if replaces:
        changed = {name: statement.excluded[name] for name in rows[0] if name not in (*keys, *kept)}
        statement = statement.on_conflict_do_update(index_elements=keys, set_=changed)
    else:
        statement = statement.on_conflict_do_nothing(index_elements=keys)
    await connection.execute(statement, list(rows))

"""A journal in pages becomes the same rows as a fold over the whole of it."""

import asyncio
import math
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sqlalchemy import event, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from api.errors import JournalDiffers
from api.store.projection import project
from api.store.rows import NewCommand
from api.store.store import SqlStore
from api.store.tables import (
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
from dispatch.journal.records import AlphaChanged, AnyRecord, Commanded, Ended, Faulted, Redecided, StepDone, Stopped
from infra.web.store.engine import Database, migrate
from infra.web.store.tables import SqlTable
from tests.api.store import journals
from tests.api.store.journals import (
    Frame,
    Reference,
    Row,
    checkpoint_begun,
    checkpoint_taken,
    commanded,
    decided,
    done,
    page,
    trained,
)

COMMANDS = ("c0", "c1", "c2")


class Crash(Exception):
    """The process ends here."""


# ── what the tables hold ──────────────────────────────────────────────────────────────────────────────────────────────
async def rows(connection: AsyncConnection, table: Any, run: str, wanted: Sequence[str]) -> list[Row]:
    query = select(*(getattr(table, name) for name in wanted)).order_by(*table.__table__.primary_key)
    query = query.where((table.name if table is RunRow else table.run) == run)
    return [dict(row._mapping) for row in await connection.execute(query)]


async def tables(database: Database, run: str, reference: Reference) -> dict[str, Any]:
    """What the database has, with the columns of the reference."""
    async with database.reading() as connection:

        async def read(table: type[SqlTable], like: Sequence[Row]) -> list[Row]:
            return await rows(connection, table, run, sorted(like[0]) if like else ["run"])

        return {
            "run": await read(RunRow, [reference.run]),
            "generations": await read(GenerationRow, list(reference.generations.values())),
            "alpha_changes": await read(AlphaChangeRow, reference.alpha_changes),
            "checkpoints": await read(CheckpointRow, list(reference.checkpoints.values())),
            "faults": await read(FaultRow, reference.faults),
            "events": await read(EventRow, reference.events),
            "commands": await read(CommandRow, list(reference.commands.values())),
            "steps": await read(StepRow, reference.aggregates()),
        }


def expected(reference: Reference) -> dict[str, Any]:
    return {
        "run": [reference.run],
        "generations": [row for _, row in sorted(reference.generations.items())],
        "alpha_changes": reference.alpha_changes,
        "checkpoints": [row for _, row in sorted(reference.checkpoints.items())],
        "faults": reference.faults,
        "events": reference.events,
        "commands": [row for _, row in sorted(reference.commands.items())],
        "steps": [pytest.approx(row) for row in reference.aggregates()],
    }


# ── any journal, any pages, any crash ─────────────────────────────────────────────────────────────────────────────────
@st.composite
def journal(draw: st.DrawFn) -> list[list[AnyRecord]]:
    """Frames of a run of a hundred steps at most, with everything that a journal may hold."""
    frames: list[list[AnyRecord]] = [[journals.begun()], [journals.generation(0)]]
    step, checkpoint = draw(st.sampled_from([0, 14, 250])), 0
    for kind in draw(st.lists(st.integers(0, 14), max_size=40)):
        small = draw(st.integers(0, 40))
        if kind <= 4:
            last = step + 1 + small % 8
            frames.append([one for number in range(step + 1, last + 1) for one in (decided(number, small / 8),)])
            frames.extend([done(number, math.nan if small == 40 else small / 4)] for number in range(step + 1, last))
            step = last
        elif kind <= 6:
            frames.append([StepDone(max(0, step - small % 3), 1) if kind == 5 else done(max(0, step - small % 20))])
        elif kind == 7:
            checkpoint += 1
            frames.append(
                [checkpoint_begun(checkpoint, step, at_seconds=0.0 if small < 20 else 49.0)]
            )  # older code told no time
        elif kind == 8:
            frames.append([checkpoint_taken(checkpoint, max(0, step - 1))])
        elif kind == 9:
            step = max(0, step - small)
            at_seconds = 0.0 if small % 2 else 65.0
            frames.append([Redecided(checkpoint, step, at_seconds), journals.generation(small % 5, checkpoint)])
        elif kind == 10:
            frames.append([commanded(COMMANDS[small % 3]), commanded("x", "alpha", "auto")])
        elif kind == 11:
            readings = {"p95": small / 8}
            frames.append(
                [AlphaChanged(step, small / 40, "cpu", "busy", readings, 61.0), commanded("y", "alpha", "0.5")]
            )
        elif kind == 12:
            frames.append([Faulted(step, 0, "WorkerLost", "gone", 62.0)])
        elif kind == 13:
            frames.append([Stopped("asked", step, 1, "d", 63.0)])
        else:
            frames.append([Ended("over", step, 1, "d", None, 64.0)])
    return frames


Delivery = tuple[int, int, int | None]
"""where a page begins and ends, of a hundred parts of what there is, and after how many statements the process ends"""


async def deliver(
    database: Database, run: str, frames: list[list[AnyRecord]], trimmed: int, plan: list[Delivery]
) -> None:
    """Hands out pages that begin anywhere before the cursor, then all of it, twice."""
    cursor = 0
    for begins, ends, crashes_at in [*plan, (0, 100, None), (0, 100, None)]:
        after = max(trimmed, cursor * begins // 100)
        last = max(after, cursor + (len(frames) - cursor) * ends // 100)
        given_page = page(frames, after, last)
        if crashes_at is not None:
            await crash(database, run, given_page, crashes_at)
            continue
        async with database.writing() as connection:
            assert await project(connection, run, given_page) == last
        cursor = last


async def crash(database: Database, run: str, given_page: FeedPage, statements: int) -> None:
    """Takes a page in, but the process ends after so many statements, or before its commit."""
    left = [statements]

    def end(*_: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Crash

    event.listen(database.engine.sync_engine, "before_cursor_execute", end)
    try:
        with pytest.raises(Crash):
            await project_and_crash(database, run, given_page)
    finally:
        event.remove(database.engine.sync_engine, "before_cursor_execute", end)


async def project_and_crash(database: Database, run: str, given_page: FeedPage) -> None:
    async with database.writing() as connection:
        await project(connection, run, given_page)
        raise Crash


async def check_journal(url: str, run: str, frames: list[list[AnyRecord]], trimmed: int, plan: list[Delivery]) -> None:
    commands = [run + name for name in COMMANDS]
    database = Database(url)
    try:
        async with database.writing() as connection:
            blank: Row = dict.fromkeys(("digest", "verb", "worker", "value", "actor", "reason", "text"), "")
            blank |= {"state": "pending", "expected": -1, "created_at": 1.0}
            await connection.execute(
                insert(CommandRow), [blank | {"id": id_, "run": run, "key": id_} for id_ in commands]
            )
        await deliver(database, run, frames, trimmed, plan)
        reference = Reference(commands).fold(frames, trimmed)
        assert await tables(database, run, reference) == expected(reference)
    finally:
        await database.close()


def test_any_pages_and_any_crash_come_to_the_same_rows(database: str, fuzz_rounds: int) -> None:
    migrate(database)
    numbers = count()
    part = st.integers(0, 100)
    plans = st.lists(st.tuples(part, part, st.none() | st.integers(0, 25)), max_size=6)

    @settings(
        max_examples=15 * fuzz_rounds,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(frames=journal(), trims=st.sampled_from([0, 0, 2, 50]), plan=plans)
    def check(frames: list[list[AnyRecord]], trims: int, plan: list[Delivery]) -> None:
        run = f"run{next(numbers)}"
        named = [
            [replace(one, id=run + one.id) if isinstance(one, Commanded) else one for one in frame] for frame in frames
        ]
        asyncio.run(check_journal(database, run, named, min(trims, len(frames) // 2), plan))

    check()


# ── one thing at a time ───────────────────────────────────────────────────────────────────────────────────────────────
def test_a_page_taken_in_twice_changes_nothing(database: str) -> None:
    async def run() -> None:
        store = await SqlStore.open(database)
        frames: list[Frame] = [[journals.begun()], *trained(1, 20)]
        assert await store.runs.project("run", page(frames)) == 41
        before = await store.runs.steps("run")
        assert await store.runs.project("run", page(frames)) == 41
        assert await store.runs.steps("run") == before
        assert sum(point.steps for point in before) == 20
        await store.close()

    asyncio.run(run())


def test_a_trimmed_journal_leaves_a_gap_and_goes_on_behind_its_checkpoint(database: str) -> None:
    async def run() -> None:
        store = await SqlStore.open(database)
        frames: list[Frame] = [
            [journals.begun()],
            *trained(1, 20),
            *trained(13, 18),
            [checkpoint_begun(1, 8)],
            *trained(9, 10),
        ]
        await store.runs.project("run", page(frames, 0, 41))
        await store.runs.project("run", page(frames, 53))
        events = await store.runs.events("run", 1)
        assert [(one.kind, one.cursor) for one in events] == [("gap", 53), ("checkpoint begun", 54)]
        assert events[0].body == {"first": 42, "last": 53}
        assert [point.last_step for point in await store.runs.steps("run")] == list(range(1, 11))
        await store.close()

    asyncio.run(run())


def test_an_event_without_a_time_has_that_of_the_event_before_it(database: str) -> None:
    async def run() -> None:
        store = await SqlStore.open(database)
        frames: list[Frame] = [
            [journals.begun()],
            *trained(1, 2),
            [checkpoint_begun(1, 2, at_seconds=0.0)],
            [checkpoint_taken(1, 2)],
            [Redecided(1, 2)],
        ]
        await store.runs.project("run", page(frames, 0, 7))
        await store.runs.project("run", page(frames, 7))
        told = [(one.kind, one.at) for one in await store.runs.events("run")]
        assert told == [("begun", 5.0), ("checkpoint begun", 5.0), ("checkpoint", 50.0), ("redecided", 50.0)]
        await store.close()

    asyncio.run(run())


def test_a_shorter_journal_is_another_one(database: str) -> None:
    async def run() -> None:
        store = await SqlStore.open(database)
        await store.runs.project("run", page([[journals.begun()], *trained(1, 3)]))
        with pytest.raises(JournalDiffers, match="ends at cursor 1; expected 7 or later"):
            await store.runs.project("run", page([[journals.begun()]]))
        await store.close()

    asyncio.run(run())


def test_a_command_is_done_when_the_journal_has_it(database: str) -> None:
    async def run() -> None:
        store = await SqlStore.open(database)
        sent = await store.commands.submit(NewCommand("run", "alpha", "k", "ann", value="0.25", reason="why"))
        record = replace(commanded(sent.id, "alpha", "0.25"), text="a zero \x00 byte")
        await store.runs.project("run", page([[journals.begun()], [record]]))
        found = await store.commands.get(sent.id)
        assert found is not None
        assert (found.state, found.text, found.cursor) == ("done", "a zero \ufffd byte", 2)
        (change,) = (await store.runs.alpha_changes("run")).rows
        assert (change.alpha, change.mode, change.actor, change.reason) == (0.25, "manual", "ann", "a test")
        settled = await store.commands.record_answer(sent.id, "refused", "too late")
        assert settled == found
        await store.close()

    asyncio.run(run())


def test_a_command_that_did_not_come_through_the_api_is_audited_once(database: str) -> None:
    async def run() -> None:
        store = await SqlStore.open(database)
        sent = await store.commands.submit(NewCommand("run", "pause", "k", "ann"))
        given = [commanded(sent.id), commanded("there", "drain"), commanded("later", "alpha", "0.5")]
        taken = page([[journals.begun()], *([one] for one in given)])
        await store.runs.project("run", taken)
        await store.runs.project("run", taken)
        trail = (await store.audit.list(run="run")).rows
        assert [(one.actor, one.token, one.action) for one in trail] == [("ann", "", "alpha 0.5"), ("ann", "", "drain")]
        assert (trail[0].at, trail[0].detail) == (60.0, {"command": "later", "reason": "a test"})
        await store.close()

    asyncio.run(run())


def test_an_answer_makes_way_for_what_the_journal_has(database: str) -> None:
    async def run() -> None:
        store = await SqlStore.open(database)
        sent = await store.commands.submit(NewCommand("run", "alpha", "k", "ann", value="0.25"))
        await store.commands.record_answer(sent.id, "accepted", "answered again, later", 7)
        record = commanded(sent.id, "alpha", "0.25")
        await store.runs.project("run", page([[journals.begun()], [record]]))
        found = await store.commands.get(sent.id)
        assert found is not None
        assert (found.text, found.cursor, found.done_at) == (record.text, 2, record.at_seconds)
        await store.close()

    asyncio.run(run())


def test_a_run_that_is_found_again_keeps_the_topic_of_its_journal(database: str) -> None:
    async def run() -> None:
        store = await SqlStore.open(database)
        await store.runs.project("run", page([[journals.begun()]]))
        seen = await store.runs.see("run", "/runs/run", {}, "another")
        assert (seen.topic, seen.folder) == (journals.begun().topic, "/runs/run")
        await store.close()

    asyncio.run(run())

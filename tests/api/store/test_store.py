"""Commands, reads and retention, on both databases."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from sqlalchemy import func, select

from api.store.history import choose
from api.store.records import Window
from api.store.retention import Retention
from api.store.rows import NewCommand, StoredReading
from api.store.store import SqlStore
from api.store.tables import FANOUT, LEVELS, StepRow
from dispatch.journal.records import Redecided
from infra.web.errors import KeyReused
from infra.web.store.engine import Database
from infra.web.store.rows import NewAudit, Scope
from infra.web.store.tokens import LINK_NAME, SESSION_NAME
from tests.api.store import journals
from tests.api.store.journals import Frame, checkpoint_begun, checkpoint_taken, commanded, done, page, trained

READ: tuple[Scope, ...] = ("read",)


def on(url: str, ask: Callable[[SqlStore], Awaitable[None]]) -> None:
    async def run() -> None:
        store = await SqlStore.open(url)
        try:
            await ask(store)
        finally:
            await store.close()

    asyncio.run(run())


def test_a_command_sent_again_is_the_same_one(database: str) -> None:
    async def ask(store: SqlStore) -> None:
        wanted = NewCommand("run", "drain", "key", "ann", worker="w1")
        first = await store.commands.submit(wanted)
        assert await store.commands.submit(wanted) == first
        assert (await store.commands.submit(NewCommand("run", "drain", "key", "bob", worker="w1"))).id != first.id
        with pytest.raises(KeyReused, match="'key' was used for another command"):
            await store.commands.submit(NewCommand("run", "drain", "key", "ann", worker="w2"))

    on(database, ask)


def test_commands_given_at_once_with_one_key_are_one(database: str) -> None:
    async def ask(store: SqlStore) -> None:
        wanted = NewCommand("run", "pause", "key", "ann")
        given = await asyncio.gather(*(store.commands.submit(wanted) for _ in range(5)))
        assert len({one.id for one in given}) == 1
        assert len(await store.commands.pending("run")) == 1

    on(database, ask)


def test_pending_commands_come_oldest_first_until_they_are_settled(database: str) -> None:
    async def ask(store: SqlStore) -> None:
        given = [await store.commands.submit(NewCommand("run", "pause", f"k{n}", "ann")) for n in range(4)]
        settled = await store.commands.record_answer(given[1].id, "refused", "no")
        assert settled is not None
        assert (settled.state, settled.text) == ("refused", "no")
        assert [one.key for one in await store.commands.pending("run")] == ["k0", "k2", "k3"]
        first = await store.commands.list("run", limit=3)
        rest = await store.commands.list("run", first.next, 3)
        assert [one.key for one in (*first.rows, *rest.rows)] == ["k3", "k2", "k1", "k0"]
        assert rest.next is None

    on(database, ask)


def test_entries_without_a_token_push_out_none_that_have_one(database: str) -> None:
    async def ask(store: SqlStore) -> None:
        for number in range(5):
            await store.audit.add(NewAudit("ann", f"POST {number}", 202, token="1"), NewAudit("", "POST x", 401))
        await store.audit.add(*(NewAudit("", f"POST {number}", 401) for number in range(5)))
        assert await store.prune(Retention(audit=4, strangers=3)) == 8
        kept = [(one.actor, one.action[-1]) for one in (await store.audit.list()).rows]
        assert kept == [("", "4"), ("", "3"), ("", "2"), ("ann", "4"), ("ann", "3"), ("ann", "2"), ("ann", "1")]
        assert await store.prune(Retention(age_seconds=-1)) == 7

    on(database, ask)


def test_what_a_run_is_about_is_kept_when_it_is_seen_again(database: str) -> None:
    async def ask(store: SqlStore) -> None:
        await store.runs.project("run", page([[journals.begun()], [journals.generation(0)]]))
        seen = await store.runs.see("run", "/runs/run", {"seed": 1}, "log:clicks")
        assert (seen.state, seen.cursor, seen.settings, seen.code) == ("running", 2, {"seed": 1}, "0.1.0")
        assert (await store.runs.list()).rows == (seen,)
        assert await store.runs.get("other") is None
        assert (await store.runs.generations("run")).rows[0].members == ("a", "b")

    on(database, ask)


def test_steps_come_in_as_many_points_as_asked_for(database: str) -> None:
    async def ask(store: SqlStore) -> None:
        await store.runs.project("run", page([[journals.begun()], [done(step) for step in range(1, 1001)]]))
        for points in (1, 7, 100, 1000):
            found = await store.runs.steps("run", points=points)
            assert points / 16 <= len(found) <= points
            assert (found[0].first_step, found[-1].last_step) == (1, 1000)
            assert sum(point.samples for point in found) == 8000
        assert {type(value) for point in found for value in point} <= {int, float, type(None)}
        assert [point.first_step for point in await store.runs.steps("run", 500, 502)] == [500, 501, 502]
        assert await store.runs.steps("run", 2000) == ()

    on(database, ask)


@pytest.mark.parametrize("last", [10, 1000, 10**6, 10**9])
@pytest.mark.parametrize("points", [2, 10, 500])
def test_few_rows_are_read_however_long_a_run_is(last: int, points: int) -> None:
    choice = choose(dict.fromkeys(LEVELS, 1), 1, last, points)
    if choice.level < LEVELS[-1]:
        assert last // choice.level + 1 <= FANOUT * points
    assert last // choice.level // choice.width + 1 <= points


def test_pruned_steps_are_read_from_a_coarser_level_and_survive_a_void(database: str) -> None:
    async def ask(store: SqlStore) -> None:
        frames: list[Frame] = [
            [journals.begun()],
            [done(step) for step in range(1, 601)],
            [checkpoint_begun(1, 500)],
            [checkpoint_taken(1, 500)],
        ]
        await store.runs.project("run", page(frames))
        assert await store.prune(Retention(steps={1: 32})) == 495
        assert {point.steps for point in await store.runs.steps("run", 1, 40)} <= {15, 16}
        frames += [[Redecided(1, 500)], *trained(501, 510)]
        await store.runs.project("run", page(frames, 4))
        assert sum(point.steps for point in await store.runs.steps("run", points=2)) == 510

    on(database, ask)


def test_old_events_are_pruned(database: str) -> None:
    async def ask(store: SqlStore) -> None:
        await store.runs.project("run", page([[journals.generation(number)] for number in range(20)]))
        assert await store.prune(Retention(events=5)) == 15
        assert [one.cursor for one in await store.runs.events("run")] == [16, 17, 18, 19, 20]
        assert await store.prune(Retention(age_seconds=60.0)) == 5

    on(database, ask)


def test_the_plan_of_a_read_of_steps_uses_the_primary_key(tmp_path: object) -> None:
    query = select(func.count()).where(StepRow.run == "run", StepRow.level == 1, StepRow.bucket.between(1, 2))

    async def run() -> str:
        url = f"sqlite:///{tmp_path}/freshet.db"
        await (await SqlStore.open(url)).close()
        database = Database(url)
        async with database.reading() as connection:
            text = str(query.compile(compile_kwargs={"literal_binds": True}))
            plan = (await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}")).one()
        await database.close()
        return str(plan)

    assert "USING PRIMARY KEY (run=? AND level=? AND bucket>? AND bucket<?)" in asyncio.run(run())


def test_readings_are_kept_once_and_the_oldest_are_pruned(database: str) -> None:
    async def ask(store: SqlStore) -> None:
        await store.runs.see("run", "folder", {}, "topic")
        readings = [StoredReading(10, 10.0 * number, "{}") for number in range(1, 21)]
        await store.runs.add_readings("run", readings)
        await store.runs.add_readings("run", [StoredReading(10, 205.0, "{}"), *readings])
        assert await store.runs.readings("run", 0.0, 1e11, 100) == tuple(readings)
        assert await store.prune(Retention(readings={10: 5})) == 15
        assert [each.at for each in await store.runs.readings("run", 0.0, 1e11, 100)] == [
            160.0,
            170.0,
            180.0,
            190.0,
            200.0,
        ]

    on(database, ask)


def test_a_long_window_has_readings_of_all_of_it_from_the_finest_level_that_reaches(database: str) -> None:
    async def ask(store: SqlStore) -> None:
        await store.runs.see("run", "folder", {}, "topic")
        coarse = [StoredReading(120, 120.0 * number, "{}") for number in range(1, 701)]
        fine = [StoredReading(10, 10.0 * number, "{}") for number in range(7901, 8401)]
        await store.runs.add_readings("run", [*coarse, *fine])
        short = await store.runs.readings("run", 83_000.0, 84_000.0, 1000)
        assert ([each.level for each in short], short[0].at) == ([10] * 100, 83_010.0)
        long = [each.at for each in await store.runs.readings("run", 0.0, 1e11, 20)]
        assert (len(long) <= 35, long[0] <= 84_000 / 20, long[-1], long == sorted(long)) == (True, True, 84_000.0, True)
        both = await store.runs.readings("run", 70_000.0, 84_000.0, 1000)
        assert [each.level for each in both] == [120] * 75 + [10] * 500

    on(database, ask)


def test_very_many_records_are_thinned_out_over_all_of_a_window(database: str) -> None:
    async def ask(store: SqlStore) -> None:
        frames: list[Frame] = [[commanded(f"c{number}", at_seconds=10.0 * number)] for number in range(1, 201)]
        await store.runs.project("run", page([*frames, [checkpoint_taken(1, 1)]]))
        asked = ("checkpoint", "command")
        few = await store.runs.thinned_records("run", asked, Window(None, None), 20)
        assert [each.at for each in few] == [50.0, *(100.0 * number for number in range(20, 0, -1))]
        all_inside = await store.runs.thinned_records("run", asked, Window(95.0, 205.0), 20)
        assert [each.at for each in all_inside] == [10.0 * number for number in range(20, 9, -1)]

    on(database, ask)


def test_links_and_sessions_that_expired_long_ago_are_removed_and_tokens_are_not(database: str) -> None:
    async def ask(store: SqlStore) -> None:
        await store.tokens.create("ann", READ, time.time() - 90_000)
        for name in (LINK_NAME, SESSION_NAME):
            for passed_seconds in (90_000, 10):
                await store.tokens.create(name, READ, time.time() - passed_seconds)
        await store.tokens.create(SESSION_NAME, READ)
        assert await store.prune(Retention()) == 2
        left = [token.name for token in await store.tokens.list()]
        assert sorted(left) == sorted(["ann", LINK_NAME, SESSION_NAME, SESSION_NAME])

    on(database, ask)

"""A run that begins anew under the name of a removed one, with the same database; with real journals and feeds."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, update
from structlog.testing import capture_logs

from api.runs.places import Place
from api.runs.projector import Projector
from api.store import replaced
from api.store.store import SqlStore
from api.store.tables import EventRow, GenerationRow, RunRow, StepRow
from dispatch.journal.log import identity_of
from tests.api.dispatcher import PretendDispatcher
from tests.api.store.journals import Frame, begun, page, trained

OLD_STEPS = 20


def asked(database: str, ask: Callable[[SqlStore], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        store = await SqlStore.open(database)
        try:
            return await ask(store)
        finally:
            await store.close()

    return asyncio.run(run())


async def steps_of(store: SqlStore) -> dict[str, list[int]]:
    """The numbers of the steps that SQL has, by run."""
    chosen = select(StepRow.run, StepRow.bucket).where(StepRow.level == 1).order_by(StepRow.bucket)
    found: dict[str, list[int]] = {}
    async with store.database.reading() as connection:
        for run, bucket in await connection.execute(chosen):
            found.setdefault(run, []).append(bucket)
    return found


async def rows_of(store: SqlStore, run: str) -> dict[str, int]:
    found: dict[str, int] = {}
    async with store.database.reading() as connection:
        for table in (GenerationRow, EventRow):
            query = select(func.count()).select_from(table).where(table.run == run)
            found[table.__tablename__] = await connection.scalar(query) or 0
    return found


def projected(folder: Path, steps: int, database: str, settings: str) -> str:
    """Has the journal of a new run in this folder projected over its feed; returns its identity."""
    shutil.rmtree(folder, ignore_errors=True)
    with PretendDispatcher(folder) as dispatcher:
        dispatcher.train(1, steps)

        async def project(store: SqlStore) -> None:
            projector = Projector(store, Place("r", folder, {"is": settings}))
            await projector._see()
            while await projector.advance() or projector.projected < dispatcher.journal.cursor:
                pass

        asked(database, project)
        return dispatcher.journal.identity


@pytest.mark.parametrize("new_steps", [3, OLD_STEPS, 30])
def test_the_new_run_has_the_name_and_the_old_ones_rows_have_one_of_their_own(
    database: str, tmp_path: Path, new_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaced, "BATCH", 7)
    old = projected(tmp_path / "r", OLD_STEPS, database, "old")
    known = asked(database, lambda store: store.runs.get("r"))
    rows = asked(database, lambda store: rows_of(store, "r"))
    with capture_logs() as logs:
        new = projected(tmp_path / "r", new_steps, database, "new")
    apart = f"r.{old[:8]}"
    assert asked(database, steps_of) == {"r": list(range(1, new_steps + 1)), apart: list(range(1, OLD_STEPS + 1))}
    kept = asked(database, lambda store: store.runs.get(apart))
    ours = asked(database, lambda store: store.runs.get("r"))
    assert (kept.cursor, kept.begun_at, kept.settings) == (known.cursor, known.begun_at, {"is": "old"})
    assert (ours.cursor, ours.settings, ours.state) == (new_steps + 1, {"is": "new"}, "running")
    assert (asked(database, lambda store: store.runs.projected("r"))).identity == new
    assert asked(database, lambda store: rows_of(store, apart)) == rows
    assert [(log["run"], log["kept_as"]) for log in logs if "began anew" in log["event"]] == [("r", apart)]


def test_a_run_that_was_stopped_at_once_is_projected_from_its_files(database: str, tmp_path: Path) -> None:
    old = projected(tmp_path / "r", OLD_STEPS, database, "old")
    shutil.rmtree(tmp_path / "r")
    with PretendDispatcher(tmp_path / "r") as dispatcher:
        dispatcher.journal.stop("asked to", 0, 0, "")

    async def finish(store: SqlStore) -> None:
        await Projector(store, Place("r", tmp_path / "r", {})).finish()

    asked(database, finish)
    assert asked(database, steps_of) == {f"r.{old[:8]}": list(range(1, OLD_STEPS + 1))}
    assert asked(database, lambda store: store.runs.get("r")).state == "stopped"


def test_a_run_that_goes_on_keeps_its_identity_and_its_rows(database: str, tmp_path: Path) -> None:
    first = projected(tmp_path / "r", 3, database, "old")
    with PretendDispatcher(tmp_path / "r") as dispatcher:
        assert dispatcher.journal.identity == first == identity_of(tmp_path / "r" / "journal")
        dispatcher.train(4, 5)

        async def project(store: SqlStore) -> None:
            projector = Projector(store, Place("r", tmp_path / "r", {}))
            while await projector.advance() or projector.projected < dispatcher.journal.cursor:
                pass

        asked(database, project)
    assert asked(database, steps_of) == {"r": [1, 2, 3, 4, 5]}


def test_rows_that_were_projected_before_there_were_identities_are_set_apart_by_their_cursor(
    database: str, tmp_path: Path
) -> None:
    projected(tmp_path / "r", OLD_STEPS, database, "old")

    async def forget(store: SqlStore) -> None:
        async with store.database.writing() as connection:
            await connection.execute(update(RunRow).values(journal=""))

    asked(database, forget)
    projected(tmp_path / "r", 3, database, "new")
    found = asked(database, steps_of)
    assert found.pop("r") == [1, 2, 3]
    assert list(found.values()) == [list(range(1, OLD_STEPS + 1))]


def test_what_a_crash_left_half_moved_goes_on(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = projected(tmp_path / "r", OLD_STEPS, database, "old")

    async def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(replaced, "_finish", crash)
        with pytest.raises(KeyboardInterrupt):
            projected(tmp_path / "r", 3, database, "new")
    assert asked(database, steps_of) == {f"r.{old[:8]}": list(range(1, OLD_STEPS + 1))}
    projected(tmp_path / "r", 4, database, "newer")
    assert asked(database, steps_of) == {"r": [1, 2, 3, 4], f"r.{old[:8]}": list(range(1, OLD_STEPS + 1))}


def test_two_journals_that_take_turns_are_never_mixed(database: str) -> None:
    frames: list[Frame] = [[begun()], *trained(1, 3)]

    async def take_turns(store: SqlStore) -> list[str]:
        for journal in ("a" * 32, "b" * 32, "a" * 32):
            await store.runs.project("r", page(frames, journal=journal))
        return [run.name for run in (await store.runs.list()).rows]

    names = ["r", "r.aaaaaaaa", "r.bbbbbbbb"]
    assert asked(database, take_turns) == names
    assert asked(database, steps_of) == {name: [1, 2, 3] for name in names}

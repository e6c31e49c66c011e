"""Migrations on real databases."""

import asyncio
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, inspect, text

from alembic import command
from api.store.store import SqlStore
from infra.base.errors import ConfigError
from infra.web.store import engine
from infra.web.store.engine import driver_url, migrate, migrations, new_engine
from infra.web.store.tables import SqlTable
from tests.api.store.journals import begun, page

RACE = "import sys; from infra.web.store.engine import migrate; sys.stdin.read(1); migrate(sys.argv[1])"


def on(url: str, ask: Any) -> Any:
    """What a function says of a connection."""

    async def run() -> Any:
        opened = new_engine(driver_url(url))
        async with opened.begin() as connection:
            answer = await connection.run_sync(ask)
        await opened.dispose()
        return answer

    return asyncio.run(run())


def tables(url: str) -> set[str]:
    return set(on(url, lambda connection: inspect(connection).get_table_names()))


def differences(connection: Connection) -> list[Any]:
    return list(compare_metadata(MigrationContext.configure(connection), SqlTable.metadata))


def alembic(*arguments: str, url: str) -> str:
    env = {**os.environ, "FRESHET_API__DATABASE": url}
    called = [sys.executable, "-m", "alembic", *arguments]
    return subprocess.run(called, env=env, capture_output=True, text=True, check=True).stdout


def test_migrations_make_the_tables_of_the_models(database: str) -> None:
    migrate(database)
    assert on(database, differences) == []
    assert tables(database) == {*SqlTable.metadata.tables, "alembic_version"}


def test_migrations_go_down_and_up_again(database: str) -> None:
    def down(connection: Connection) -> None:
        config = migrations()
        config.attributes["connection"] = connection
        command.downgrade(config, "base")

    migrate(database)
    on(database, down)
    assert tables(database) == {"alembic_version"}
    migrate(database)
    assert on(database, differences) == []


def test_a_step_down_and_up_keeps_every_row(database: str) -> None:
    """SQLite would remove what refers to a run if its table were copied."""

    def to(revision: str, connection: Connection) -> None:
        config = migrations()
        config.attributes["connection"] = connection
        (command.downgrade if revision == "0001" else command.upgrade)(config, revision)

    def rows(connection: Connection) -> list[Any]:
        names = "SELECT name, state FROM runs", "SELECT run, kind FROM events"
        return [list(connection.execute(text(query))) for query in names]

    async def fill() -> None:
        store = await SqlStore.open(database)
        await store.runs.project("r", page([[begun()]], journal="a" * 32))
        await store.close()

    asyncio.run(fill())
    before = on(database, rows)
    assert before == [[("r", "running")], [("r", "begun")]]
    on(database, partial(to, "0001"))
    assert on(database, rows) == before
    assert {"add_table", "add_column"} <= {difference[0] for difference in on(database, differences)}
    on(database, partial(to, "head"))
    assert on(database, rows) == before
    assert on(database, differences) == []


def test_events_that_have_no_time_get_that_of_the_event_before(database: str) -> None:
    def older(connection: Connection) -> None:
        config = migrations()
        config.attributes["connection"] = connection
        command.downgrade(config, "0002")
        columns = "name, folder, topic, settings, code, state, version"
        connection.execute(text(f"INSERT INTO runs ({columns}) VALUES ('r', '', '', '{{}}', '', 'seen', 0)"))
        for version, at in enumerate(("NULL", "5.0", "NULL", "7.0")):
            connection.execute(text(f"INSERT INTO events VALUES ('r', {version}, 0, 'checkpoint', '{{}}', {at})"))

    migrate(database)
    on(database, older)
    migrate(database)
    times = "SELECT at FROM events ORDER BY cursor"
    assert on(database, lambda connection: list(connection.scalars(text(times)))) == [5.0, 5.0, 5.0, 7.0]


def test_checkpoints_of_earlier_releases_keep_their_rows_under_the_new_name(database: str) -> None:
    def older(connection: Connection) -> None:
        config = migrations()
        config.attributes["connection"] = connection
        command.downgrade(config, "0003")
        columns = "name, folder, topic, settings, code, state, version"
        connection.execute(text(f"INSERT INTO runs ({columns}) VALUES ('r', '', '', '{{}}', '', 'seen', 0)"))
        connection.execute(text("INSERT INTO cuts VALUES ('r', 7, 210, 4000, '{\"0\": 1}', 'taken', 5.0, 9)"))
        for version, kind in enumerate(("cut begun", "cut", "fault")):
            connection.execute(text(f"INSERT INTO events VALUES ('r', {version}, 0, '{kind}', '{{}}', 5.0)"))

    def rows(connection: Connection) -> list[Any]:
        names = "SELECT number, step, state FROM checkpoints", "SELECT kind FROM events ORDER BY cursor"
        return [[tuple(row) for row in connection.execute(text(query))] for query in names]

    migrate(database)
    on(database, older)
    migrate(database)
    assert on(database, rows) == [[(7, 210, "taken")], [("checkpoint begun",), ("checkpoint",), ("fault",)]]


def test_commands_of_earlier_releases_get_their_outcome_from_their_text(database: str) -> None:
    texts = {"done": "paused", "pending": "", "refused": "outdated: others came", "refused ": "no such worker"}

    def older(connection: Connection) -> None:
        config = migrations()
        config.attributes["connection"] = connection
        command.downgrade(config, "0004")
        columns = "id, run, key, digest, verb, worker, value, expected, actor, reason, state, text, created_at"
        for key, written in texts.items():
            values = f"'{key}', 'r', '{key}', '', 'pause', '', '', -1, '', '', '{key.strip()}', '{written}', 1.0"
            connection.execute(text(f"INSERT INTO commands ({columns}) VALUES ({values})"))

    def outcomes(connection: Connection) -> dict[str, str | None]:
        return {row.id: row.outcome for row in connection.execute(text("SELECT id, outcome FROM commands"))}

    migrate(database)
    on(database, older)
    migrate(database)
    expected = {"done": "accepted", "pending": None, "refused": "outdated", "refused ": "refused"}
    assert on(database, outcomes) == expected


def test_cursors_of_earlier_releases_keep_their_rows_on_the_way_up_and_down(database: str) -> None:
    filled = {
        "runs": ("name, folder, topic, settings, code, state, version", "'r', '', '', '{}', '', 'seen', 9"),
        "generations": ("run, number, members, uses_hub, base, reason, version", "'r', 1, '[]', FALSE, NULL, '', 2"),
        "alpha_changes": (
            "run, version, place, step, alpha, mode, backend, reason, readings, actor",
            "'r', 3, 0, 1, 0.5, 'manual', '', '', '{}', 'ann'",
        ),
        "checkpoints": ("run, number, step, samples, positions, state, version", "'r', 1, 2, 3, '{}', 'taken', 4"),
        "faults": ("run, version, place, step, generation, kind, text", "'r', 5, 1, 2, 1, 'PeerLost', ''"),
        "events": ("run, version, place, kind, body", "'r', 6, 0, 'fault', '{}'"),
        "commands": (
            "id, run, key, digest, verb, worker, value, expected, actor, reason, state, text, version, created_at",
            "'c', 'r', 'k', '', 'pause', '', '', -1, '', '', 'done', '', 7, 1.0",
        ),
    }
    expected = {
        "runs": 9,
        "generations": 2,
        "alpha_changes": 3,
        "checkpoints": 4,
        "faults": 5,
        "events": 6,
        "commands": 7,
    }

    def to(revision: str, connection: Connection) -> None:
        config = migrations()
        config.attributes["connection"] = connection
        (command.downgrade if revision == "0005" else command.upgrade)(config, revision)

    def fill(connection: Connection) -> None:
        for table, (columns, values) in filled.items():
            connection.execute(text(f"INSERT INTO {table} ({columns}) VALUES ({values})"))

    def numbers(column: str, connection: Connection) -> dict[str, int]:
        return {table: connection.scalar(text(f"SELECT {column} FROM {table}")) for table in filled}

    migrate(database)
    on(database, partial(to, "0005"))
    on(database, fill)
    migrate(database)
    assert on(database, partial(numbers, "cursor")) == expected
    assert on(database, differences) == []
    on(database, partial(to, "0005"))
    assert on(database, partial(numbers, "version")) == expected


def test_a_difference_would_be_found(database: str) -> None:
    migrate(database)
    on(database, lambda connection: connection.execute(text("DROP TABLE faults")))
    assert on(database, differences)[0][0] == "add_table"


def test_a_database_of_a_newer_freshet_is_refused(database: str) -> None:
    migrate(database)
    on(database, lambda connection: connection.execute(text("UPDATE alembic_version SET version_num = '9999'")))
    with pytest.raises(ConfigError, match="its schema is 9999; expected 0008 or an older one"):
        migrate(database)


def test_processes_that_start_at_once_migrate_one_after_the_other(database: str) -> None:
    called = [sys.executable, "-c", RACE, database]
    running = [subprocess.Popen(called, stdin=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)]
    ends = [process.communicate(b"x") for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], ends
    assert on(database, differences) == []


@pytest.mark.parametrize("url", ["mysql://here/db", "sqlite://", "no url"])
def test_a_url_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="expected as in sqlite"):
        migrate(url)


def test_the_command_alembic_makes_a_database_where_there_is_none(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new' / 'freshet.db'}"
    alembic("upgrade", "head", url=url)
    assert "runs" in tables(url)
    assert "No new upgrade operations" in alembic("check", url=url)


@pytest.mark.parametrize("is_there", [False, True])
def test_a_file_of_sqlite_is_for_its_user_alone(tmp_path: Path, is_there: bool) -> None:
    file = tmp_path / "freshet.db"
    if is_there:
        for older in (file, tmp_path / "freshet.db-wal"):
            older.touch(0o644)
    migrate(f"sqlite:///{file}")
    assert tables(f"sqlite:///{file}")
    assert {found.stat().st_mode & 0o777 for found in tmp_path.glob("freshet.db*") if found.suffix != ".lock"} == {
        0o600
    }


def test_the_folder_of_migrations_does_not_shadow_the_library() -> None:
    assert not Path("alembic/__init__.py").exists()


def test_an_installed_freshet_brings_its_own_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree("alembic", tmp_path / "infra" / "deploy" / "alembic")
    monkeypatch.setattr(engine, "ROOT", tmp_path)
    assert migrations().get_main_option("script_location") == str(tmp_path / "infra" / "deploy" / "alembic")
    url = f"sqlite:///{tmp_path / 'freshet.db'}"
    migrate(url)
    assert "runs" in tables(url)

"""Migrations on a real SQLite file."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path


def alembic(*arguments: str, database: Path) -> str:
    env = {**os.environ, "FRESHET_DATABASE_URL": f"sqlite:///{database}"}
    command = [sys.executable, "-m", "alembic", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout


def test_upgrade_makes_a_database_where_there_is_none(tmp_path: Path) -> None:
    database = tmp_path / "new" / "freshet.sqlite"
    alembic("upgrade", "head", database=database)
    connection = sqlite3.connect(database)
    tables = connection.execute("select name from sqlite_master").fetchall()
    connection.close()
    assert ("alembic_version",) in tables


def test_tables_and_migrations_agree(tmp_path: Path) -> None:
    database = tmp_path / "freshet.sqlite"
    alembic("upgrade", "head", database=database)
    assert "No new upgrade operations" in alembic("check", database=database)


def test_folder_of_migrations_does_not_shadow_the_library() -> None:
    assert not Path("alembic/__init__.py").exists()

"""Every test of the store runs on both databases."""

from pathlib import Path

import pytest

from tests.databases import PostgresServer


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new database, not migrated yet."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'freshet.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()

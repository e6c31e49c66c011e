"""One run that trains nothing and the API that serves it, shared by the tests of a module."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.dispatcher import PretendDispatcher
from tests.api.serving import Served, serving, until


@pytest.fixture(scope="module")
def database_kind() -> str:
    """Modules that run on both databases give this parameter."""
    return "sqlite"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def dispatcher(folder: Path) -> Iterator[PretendDispatcher]:
    with PretendDispatcher(folder / "r") as pretending:
        yield pretending


@pytest.fixture(scope="module")
def api(
    folder: Path, dispatcher: PretendDispatcher, database_kind: str, request: pytest.FixtureRequest
) -> Iterator[Served]:
    database = f"sqlite:///{folder / 'freshet.db'}"
    if database_kind == "postgresql":
        database = request.getfixturevalue("postgres").new_database()
    with serving(folder, database, requests_per_second=10_000.0) as served:
        until(lambda: served.get("/v1/runs/r").json.get("is_live"))
        until(lambda: served.get("/v1/runs/r/generations").json["items"])
        yield served

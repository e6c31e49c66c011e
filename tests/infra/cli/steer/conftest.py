"""A run that trains nothing, the API that serves it, and commands that are given over it."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tests.api.dispatcher import PretendDispatcher
from tests.api.serving import Served, serving, until
from tests.infra.cli.conftest import Invoke


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    """The API runs in this process, and its log would be among what commands print."""
    configured = structlog.get_config()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.configure(**configured)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def dispatcher(folder: Path) -> Iterator[PretendDispatcher]:
    with PretendDispatcher(folder / "r") as pretending:
        yield pretending


@pytest.fixture(scope="module")
def api(folder: Path, dispatcher: PretendDispatcher) -> Iterator[Served]:
    with serving(folder, f"sqlite:///{folder / 'freshet.db'}", requests_per_second=10_000.0) as served:
        until(lambda: served.get("/v1/runs/r").json.get("is_live"))
        (folder / "endpoints").mkdir()
        (folder / "endpoints" / "api").write_text(served.address)
        yield served


@pytest.fixture
def steer(invoke: Invoke, api: Served, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Gives a command to that API."""

    def run(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
        return invoke(*arguments, "--api", api.address, "--token", api.token)

    return run

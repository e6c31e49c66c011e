"""A run that has been started and whose dispatcher has not begun its journal: it is there, and says so."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastapi import Response

from api.routes.common import known
from api.routes.runs import read_run
from api.runs.followed import FollowedRuns
from api.store.store import SqlStore
from infra.run.folder import claim
from infra.web.errors import NotAvailable, NotFound
from tests.api.dispatcher import write_settings
from tests.api.serving import Served, serving, until


def status_of(api: Served) -> dict[str, object]:
    answer = api.get("/v1/runs/r")
    assert answer.status == 200
    told: dict[str, object] = answer.json
    return told


@pytest.mark.parametrize("root", ["own", "several"])
def test_a_run_without_a_journal_is_starting_as_long_as_somebody_works_there(tmp_path: Path, root: str) -> None:
    folder = tmp_path / "runs" / "r"
    with claim(folder), serving(folder if root == "own" else folder.parent, f"sqlite:///{tmp_path}/freshet.db") as api:
        write_settings(folder)
        until(lambda: api.get("/v1/runs").json["items"])
        told = status_of(api)
        figures = {name: told[name] for name in ("state", "cursor", "step", "samples", "status", "is_live")}
        expected = {"cursor": 0, "step": None, "samples": None, "status": None, "is_live": False}
        assert figures == {"state": "starting", **expected}
        assert [run["state"] for run in api.get("/v1/runs").json["items"]] == ["starting"]
        assert api.get("/v1/runs/r/steps").json == {"items": [], "next": None}
        assert api.get("/v1/runs/r/workers").status == api.get("/v1/runs/r/alpha").status == 200


def test_a_run_that_was_asked_for_and_has_no_folder_yet_is_not_available(tmp_path: Path) -> None:
    runs = FollowedRuns(tmp_path, store=None)  # type: ignore[arg-type]
    runs.expect("r")
    with pytest.raises(NotAvailable, match="'r' is being started"):
        runs.get("r")
    with pytest.raises(NotFound):
        runs.get("other")
    asyncio.run(runs.close())


@pytest.mark.parametrize("route", [read_run, partial(known, response=Response())])
def test_a_folder_that_is_found_while_the_database_answers_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, route: Callable[..., Awaitable[object]]
) -> None:
    async def ask() -> None:
        store = await SqlStore.open(f"sqlite:///{tmp_path}/freshet.db")
        followed, read = FollowedRuns(tmp_path, store), store.runs.get

        async def find_meanwhile(name: str) -> object:
            stored = await read(name)
            if name not in followed:
                write_settings_in(tmp_path / name)
                followed.find_runs()
            return stored

        monkeypatch.setattr(store.runs, "get", find_meanwhile)
        assert "r" not in followed
        assert await route(run="r", parts=SimpleNamespace(runs=followed, store=store))
        await followed.close()
        await store.close()

    asyncio.run(ask())


def test_a_run_that_ended_before_its_journal_began_is_silent(tmp_path: Path) -> None:
    write_settings_in(folder := tmp_path / "r")
    with serving(folder, f"sqlite:///{tmp_path}/freshet.db") as api:
        with claim(folder):
            until(lambda: status_of(api)["state"] == "starting")
        until(lambda: status_of(api)["state"] == "silent")


def write_settings_in(folder: Path) -> None:
    folder.mkdir()
    write_settings(folder)

"""One way to name a run in all commands: --run with its name or its folder, or nothing where there is one."""

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from infra.base.storage import Storage
from infra.cli.main import app
from infra.run.folder import claim
from infra.run.settings import load_settings, store_settings
from tests.dispatch.checkpoints.checkpoints import rows_file, take_checkpoint
from tests.infra.cli.conftest import Invoke
from tests.infra.cli.test_checkpoints import KEYS
from tests.infra.cli.test_members import fake_run

OTHERS = {
    "agent": {"--folder", "--runs"},
    "api": {"--runs"},
    "bench checkpoint": {"--folder"},
    "bench recovery": {"--folder"},
    "keys": {"folder"},
    "replay": {"--into"},
    "snapshots export": {"into"},
}
"""what is given a folder, or several runs, and names no run"""
WITHOUT_A_RUN = {"settings", "check", "init", "keys", "agent", "topics create", "topics list"}
"""commands that are about no run"""


def commands() -> Iterator[tuple[str, Any]]:
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        for inner, found in getattr(command, "commands", {"": command}).items():
            yield f"{name} {inner}".strip(), found


def words_of(parameter: Any) -> set[str]:
    return {parameter.name} if parameter.param_type_name == "argument" else set(parameter.opts)


@pytest.mark.parametrize(
    ("name", "command"), list(commands()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_no_option_but_run_names_a_run(name: str, command: Any) -> None:
    shown = [parameter for parameter in command.params if not parameter.hidden]
    options = {word for parameter in shown for word in words_of(parameter)}
    assert ("--run" in options) is (name not in WITHOUT_A_RUN and not name.startswith("bench")), options
    suspects = {word for word in options if re.search(r"run|folder|into", word)} - {"--run"}
    assert suspects == OTHERS.get(name, set())


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Two runs below ``runs``, and one elsewhere; each has as many checkpoints as its place in this list says."""
    folders = [tmp_path / "elsewhere" / "first", tmp_path / "runs" / "second", tmp_path / "runs" / "third"]
    for number, folder in enumerate(folders, start=1):
        make_run(folder, number)
    return folders


def make_run(folder: Path, checkpoints: int, name: str = "") -> None:
    store_settings(load_settings(run=name or f"called-{folder.name}", folder=folder))
    (folder / "journal").mkdir()
    storage = Storage.at(folder / "checkpoints")
    for number in range(1, checkpoints + 1):
        take_checkpoint(storage, number, (rows_file(storage, range(4), KEYS, checkpoint=number),), 4)


def checkpoints_in(invoke: Invoke, *arguments: str | Path) -> int:
    done = invoke("checkpoints", "list", "--json", *arguments)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return len(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("value", "checkpoints"),
    [
        ("second", 2),
        ("called-third", 3),
        ("runs/third", 3),
        ("./elsewhere/first", 1),
        ("{}/elsewhere/first", 1),
    ],
)
def test_a_run_is_named_by_its_name_or_its_folder(
    invoke: Invoke, runs: list[Path], tmp_path: Path, value: str, checkpoints: int
) -> None:
    assert checkpoints_in(invoke, "--run", value.format(tmp_path)) == checkpoints


def test_a_folder_here_is_named_without_its_path_unless_a_run_has_that_name(invoke: Invoke, tmp_path: Path) -> None:
    make_run(tmp_path / "mine", 1)
    assert checkpoints_in(invoke, "--run", "mine") == 1
    make_run(tmp_path / "runs" / "mine", 2)
    assert (checkpoints_in(invoke, "--run", "mine"), checkpoints_in(invoke, "--run", "./mine")) == (2, 1)


def test_the_only_run_is_found_by_itself(invoke: Invoke, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "one", 3)
    assert checkpoints_in(invoke) == 3
    assert invoke("snapshots", "list", "--json").returncode == 0


def test_of_several_runs_the_only_one_under_way_is_found(invoke: Invoke, runs: list[Path]) -> None:
    with claim(runs[1]):
        assert checkpoints_in(invoke) == 2
    assert invoke("checkpoints", "list").returncode == 2, "that was the only reason"


@pytest.mark.parametrize(
    "command", ["checkpoints list", "checkpoints show 2", "snapshots list --json", "verify", "replay", "pause"]
)
def test_several_runs_are_listed_with_a_command_that_names_one(invoke: Invoke, runs: list[Path], command: str) -> None:
    done = invoke(*command.split())
    assert done.returncode == 2
    assert "in runs there are second, third; expected exactly one; name one, as in 'freshet" in done.stderr
    printed = shlex.split(done.stderr.partition("as in '")[2].partition("'")[0])
    assert printed == ["freshet", *command.split(), "--run", "third"]
    assert "no run is named" not in invoke(*printed[1:]).stderr


@pytest.mark.parametrize("command", ["checkpoints list", "snapshots list", "verify", "replay", "serve", "dead-letters"])
def test_an_unknown_name_is_told_with_those_that_are_there(invoke: Invoke, runs: list[Path], command: str) -> None:
    done = invoke(*command.split(), "--run", "secnd")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "there is no run 'secnd' in runs, which has second, third; expected the name of a run" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("checkpoints", "list", "elsewhere/first"),
        ("checkpoints", "show", "elsewhere/first", "1"),
        ("checkpoints", "pin", "elsewhere/first", "1"),
        ("checkpoints", "verify", "elsewhere/first", "1"),
        ("snapshots", "list", "--folder", "elsewhere/first"),
        ("token", "list", "--run-folder", "elsewhere/first"),
    ],
)
def test_an_old_spelling_works_and_names_the_new_one(invoke: Invoke, runs: list[Path], arguments: tuple[str]) -> None:
    done = invoke(*arguments)
    notice = "freshet: the run is named in an old way; write it as --run elsewhere/first\n"
    assert (done.returncode, done.stderr) == (0, notice)
    shown = invoke(*arguments[:2], "--help").stdout
    assert "--run" in shown
    assert not re.search(r"--(run-)?folder|FOLDER\]", shown), shown


def test_an_old_spelling_is_a_path_even_if_a_run_has_that_name(invoke: Invoke, tmp_path: Path) -> None:
    make_run(tmp_path / "mine", 1)
    make_run(tmp_path / "runs" / "mine", 2)
    done = invoke("checkpoints", "list", "mine", "--json")
    assert len(json.loads(done.stdout)) == 1
    assert done.stderr == "freshet: the run is named in an old way; write it as --run ./mine\n"


def test_two_ways_at_once_are_refused(invoke: Invoke, runs: list[Path]) -> None:
    done = invoke("snapshots", "list", "--folder", "elsewhere/first", "--run", "second")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--run second and elsewhere/first name a run; expected one of them" in done.stderr


def test_a_run_under_way_here_is_steered_without_a_token_by_name_or_by_itself(invoke: Invoke, tmp_path: Path) -> None:
    with fake_run(tmp_path / "runs" / "up-1") as run:
        for named in ((), ("--run", "up-1"), ("--run", "r"), ("--run", run.folder), ("--folder", run.folder)):
            assert invoke("pause", *named).stdout == "pause from step 41 on\n"
    assert run.commands == [("pause", "")] * 5


def test_what_needs_the_api_does_not_go_over_sockets(invoke: Invoke, tmp_path: Path) -> None:
    with fake_run(tmp_path / "runs" / "up-1") as run:
        assert "no API listens" in invoke("pause", "--reason", "x").stderr
        refused = invoke("pause", "--run", run.folder, "--reason", "x")
        assert "--reason or --if-cursor need the API, and --run" in refused.stderr
        assert "no API listens for the runs in runs/up-1" in invoke("pause", "--run", "r", "--token", "t").stderr
    assert run.commands == []


def test_the_stream_of_the_only_run_is_looked_at(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(os.environ, "FRESHET_STREAM__FIRST_BATCH")  # a setting of the stream means: not that of a run
    store_settings(load_settings(run="r", folder=tmp_path / "runs" / "r", stream={"folder": tmp_path / "own"}))
    assert f"in the embedded log {tmp_path / 'own'}" in invoke("dead-letters").stderr
    assert f"in the embedded log {tmp_path / 'own'}" in invoke("topics", "describe").stderr
    assert "in the embedded log given" in invoke("dead-letters", "--set", "stream.folder=given").stderr


@pytest.mark.parametrize("command", ["up", "demo"])
def test_where_a_run_lives_may_be_spelt_in_the_old_way(invoke: Invoke, command: str) -> None:
    notice, refused = invoke(command, "--folder", "a", "--set", "folder=b").stderr.splitlines()
    assert notice == "freshet: the run is named in an old way; write it as --run ./a"
    assert "--run ./a and --set folder=… are both given" in refused


def test_the_folder_of_a_replay_may_be_spelt_in_the_old_way(invoke: Invoke, runs: list[Path]) -> None:
    lines = invoke("replay", "--run", "second", "--folder", "into").stderr.splitlines()
    assert lines[0] == "freshet: --folder is now --into"
    assert "no steps are on record in runs/second" in lines[1]

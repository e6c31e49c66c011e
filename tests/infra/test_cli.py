from pathlib import Path

import click
import pytest
import typer.main
from typer.testing import CliRunner

from infra.cli import app
from tests.end_to_end.processes import run

COMMANDS = [
    *("demo", "up", "produce", "dispatcher", "worker", "ps", "api", "dead-letters", "settings", "keys"),
    *("bench step", "bench ps", "bench ingest", "bench quality", "bench solver", "bench dispatch", "bench paper"),
]

SYNTHETIC = ("--format", "synthetic", "--samples", "12000")


def test_every_command_is_known_here() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group) or hasattr(group, "commands")
    names = set()
    for name, command in group.commands.items():
        inner = getattr(command, "commands", None)
        names |= {f"{name} {more}" for more in inner} if inner else {name}
    assert names == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    shown = CliRunner().invoke(app, [*command.split(), "--help"])
    assert shown.exit_code == 0
    assert f"Example: freshet {command}" in " ".join(shown.output.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--set", "stream.batch=x"], "setting stream.batch = 'x' is wrong"),
        (["up", "--config", "no.toml"], "cannot read settings file no.toml"),
        (["produce", "--dataset", "criteo"], "no file given for dataset 'criteo'"),
        (["produce", "missing.tsv", "--dataset", "criteo"], "missing.tsv"),
        (["worker", "--dispatcher", "tcp://127.0.0.1:1"], "0 shard endpoints for ps.shards = 2"),
        (["worker", "--link", "0"], "a link cannot have 0.0 Gbit/s"),
        (["ps", "--shard", "7"], "no endpoint for shard 7"),
        (["dead-letters", "--run-folder", "nowhere"], "no settings of a run in nowhere"),
        (["bench", "dispatch", *SYNTHETIC, "--policies", "herald"], "Policy cannot be built: got 'herald'"),
        (["bench", "dispatch", *SYNTHETIC, "--links", "5,5,5,5,5,5,5,0"], "link of 0 Gbit/s"),
        (["bench", "dispatch", *SYNTHETIC, "--links", "5,.5"], "2 links for 8 workers"),
        (["bench", "dispatch", *SYNTHETIC, "--cache-ratio", "0.01"], "rows are too small"),
        (["bench", "dispatch", "--format", "avazu"], "no file given for 'avazu'"),
        (["bench", "paper", *SYNTHETIC[:3], "500"], "none of the paper's settings"),
        (["bench", "quality", "--input", "no.tsv", "--format", "criteo"], "no file at no.tsv"),
    ],
)
def test_a_wrong_argument_gives_one_clear_line_and_no_traceback(arguments: list[str], message: str) -> None:
    ended = run(*arguments)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr


def test_keys_are_made_once_and_readable_by_their_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    assert CliRunner().invoke(app, ["keys", str(folder), "--worker", "edge-1"]).exit_code == 0
    assert {p.name for p in folder.iterdir()} == {"server.secret", "server.public", "edge-1.secret", "edge-1.public"}
    assert (folder / "edge-1.secret").stat().st_mode & 0o077 == 0
    before = (folder / "server.secret").read_text()
    assert CliRunner().invoke(app, ["keys", str(folder)]).exit_code != 0
    assert (folder / "server.secret").read_text() == before

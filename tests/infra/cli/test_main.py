import json
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import click
import pytest
import typer.main
from typer.testing import CliRunner

from infra.base.errors import ConfigError
from infra.base.telemetry import code_version
from infra.cli.main import app, with_one_command
from tests.end_to_end.processes import ROOT, environment, freshet, run, start, wait_until
from tests.infra.cli.conftest import Invoke

COMMANDS = [
    *(
        "demo",
        "up",
        "produce",
        "init",
        "train",
        "predict",
        "replay",
        "restore",
        "dispatcher",
        "worker",
        "ps",
        "api",
        "serve",
        "broker",
        "agent",
        "pause",
        "resume",
        "command",
        "dead-letters",
        "settings",
        "keys",
        "check",
        "plan",
        "verify",
        "chaos",
        "status",
        "quality",
        "audit",
        "dashboard",
    ),
    *("runs list", "runs show", "runs create", "runs stop", "runs pause", "runs resume"),
    *("alpha get", "alpha set", "alpha auto"),
    *("token create", "token list", "token revoke"),
    *("topics create", "topics list", "topics describe"),
    *("checkpoints list", "checkpoints show", "checkpoints verify", "checkpoints pin", "checkpoints unpin"),
    *("snapshots list", "snapshots show", "snapshots diff", "snapshots export"),
    *("snapshots pin", "snapshots unpin", "snapshots rollback", "snapshots release"),
    *("token create", "token list", "token revoke"),
    *("workers add", "workers drain", "workers remove", "workers list"),
    *(
        "bench step",
        "bench decide",
        "bench map",
        "bench trace",
        "bench ps",
        "bench scale",
        "bench ingest",
        "bench quality",
        "bench crosses",
        "bench histories",
        "bench solver",
        "bench train",
        "bench dispatch",
        "bench hot",
        "bench paper",
        "bench checkpoint",
        "bench recovery",
        "bench api",
        "bench change",
        "bench siege",
        "bench serve",
        "bench freshness",
        "bench memory",
        "bench prune",
        "bench gate",
    ),
]

SYNTHETIC = ("--format", "synthetic", "--samples", "12000")


def test_every_command_is_known_here() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group) or hasattr(group, "commands")
    names = set()
    for name, command in group.commands.items():
        if command.hidden:
            continue  # a name of earlier releases
        inner = getattr(command, "commands", None)
        names |= {f"{name} {more}" for more in inner} if inner else {name}
    assert names == set(COMMANDS)


def test_a_command_by_itself_is_the_same_as_among_all_others() -> None:
    for name, command in typer.main.get_group(app).commands.items():
        ((kept, alone),) = typer.main.get_group(with_one_command(app, name)).commands.items()
        assert (kept, alone.hidden, parts_of(alone)) == (name, command.hidden, parts_of(command))


def parts_of(command: Any) -> list[str | None]:
    """The options of a command, or the commands of a group."""
    return [*getattr(command, "commands", ()), *(each.name for each in command.params)]


def test_without_a_command_of_that_name_there_are_all() -> None:
    assert with_one_command(app, "no-such-command") is app
    assert with_one_command(app, "--help") is app


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    words = command.split()
    shown = CliRunner().invoke(with_one_command(app, words[0]), [*words, "--help"])
    assert shown.exit_code == 0
    assert f"Example: freshet {command}" in " ".join(shown.output.split())


REFUSED: list[tuple[list[str], str]] = [
    (["demo", "--set", "stream.batch=x"], "setting stream.batch = 'x' is wrong"),
    (["up", "--config", "no.toml"], "cannot read settings file no.toml"),
    (["up", "--from-time", "soon"], "--from-time 'soon' is no time"),
    (["up", "--from-offsets", "0"], "--from-offsets '0' cannot be read at '0'"),
    (["dispatcher", "--set", "kafka.servers=nowhere"], "Kafka server 'nowhere' is not an address"),
    (["produce", "--dataset", "criteo"], "no file given for dataset 'criteo'"),
    (["produce", "--duration", "0"], "duration = 0.0; expected seconds above 0"),
    (["topics", "create", "--retention", "7 moons"], "retention '7 moons' cannot be read"),
    (["produce", "missing.tsv", "--dataset", "criteo"], "missing.tsv"),
    (["worker", "--link", "0"], "a link cannot have 0.0 Gbit/s"),
    (["worker", "--uplink", "0.1"], "a link cannot have an uplink of 0.1 Gbit/s alone"),
    (["workers", "add", "--uplink", "0.1"], "--uplink 0.1 is given without --link"),
    (["agent", "--uplink", "0.1"], "--uplink 0.1 is given without --link"),
    (["ps", "--shard", "7"], "no endpoint for shard 7"),
    (["check", "nowhere"], "no events at runs/log/nowhere"),
    (["up", "--set", f"dispatch.policy=joint:{'9' * 5000}"], "policy cannot be built; number of rounds of 'joint:9"),
    (["dead-letters", "--run", "nowhere"], "there is no run 'nowhere' in runs, which has none"),
    (["serve", "--run", "a", "--set", "seed=1"], "--run a and --set seed=1 are both given"),
    (["api", "--run", "a", "--config", "b.toml"], "--run a and --config b.toml are both given"),
    (["produce", "--run", "a", "--kafka"], "--run a and --kafka are both given"),
    (["verify", "--run", "./nowhere"], "no settings of a run in nowhere"),
    (["snapshots", "list"], "no run is named, and in runs there is none"),
    (["snapshots", "list", "--run", "./nowhere"], "no settings of a run in nowhere"),
    (["produce", "--predict-url", "nowhere"], "address 'nowhere' cannot be used"),
    (["produce", "--predict-url", "http://127.0.0.1:1", "--packed", "8"], "expected no --packed"),
    (["chaos", "--set", "stream.batch=x"], "setting stream.batch = 'x' is wrong"),
    (["chaos", "--clients", "--no-serve"], "--clients and --no-serve are both given"),
    (["bench", "dispatch", *SYNTHETIC, "--policies", "herald"], "policy cannot be built; got 'herald'"),
    (["bench", "dispatch", *SYNTHETIC, "--links", "5,5,5,5,5,5,5,0"], "link of 0 Gbit/s"),
    (["bench", "dispatch", *SYNTHETIC, "--links", "5,.5"], "2 links for 8 workers"),
    (["bench", "dispatch", *SYNTHETIC, "--cache-ratio", "0.01"], "rows are too small"),
    (["bench", "dispatch", "--format", "avazu"], "no file given for 'avazu'"),
    (["bench", "paper", *SYNTHETIC[:3], "500"], "none of the paper's settings"),
    (["bench", "quality", "--input", "no.tsv", "--format", "criteo"], "no file at no.tsv"),
    (["bench", "prune", "--input", "no.tsv", "--format", "criteo"], "no file at no.tsv"),
    (["demo", "--set", "stream.batch=[/]"], "setting stream.batch = '[/]' is wrong"),
    (["up", "--set", "telemetry.metrics_port=9100"], "telemetry.metrics_port = 9100"),
    (["up", "--run", "a", "--set", "folder=b"], "--run a and --set folder="),
    (["bench", "ps", "--json", "no/where.json"], "cannot write no/where.json"),
    (["bench", "map", "--speeds", "1,fast"], "--speeds cannot be '1,fast'"),
    (["bench", "map", "--sizes", "0.5"], "--sizes cannot be '0.5'"),
    (["bench", "map", "--workers", "1"], "one worker cannot be compared with several"),
    (["bench", "map", "--sizes", "1,100"], "joint:elastic on 4 × 12800 samples cannot be run"),
    (["bench", "map", "--plot", "no/where.png"], "cannot draw no/where.png"),
    (["keys", "secrets", "--worker", "a/b"], "the name 'a/b' cannot be used"),
    (["keys", "secrets", "--worker", "../x"], "the name '../x' cannot be used"),
    (["keys", "secrets", "--worker", ""], "the name '' cannot be used"),
    (["keys", "secrets", "--worker", "x" * 65], "cannot be used"),
    (["keys", "secrets", "--worker", "server"], "expected every name once"),
    (["api", "--name", "../x"], "the name '../x' cannot be used"),
]
IN_A_PROCESS = ("demo", "worker", "bench")
"""the first refusal of each of these commands comes from a real process, too"""


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_a_wrong_argument_gives_one_clear_line_and_no_traceback(
    invoke: Invoke, arguments: list[str], message: str
) -> None:
    expect_one_line(invoke(*arguments), message)


@pytest.mark.parametrize("command", IN_A_PROCESS)
def test_a_real_process_is_refused_in_the_same_way(command: str) -> None:
    arguments, message = next(refused for refused in REFUSED if refused[0][0] == command)
    expect_one_line(run(*arguments), message)


def expect_one_line(ended: "subprocess.CompletedProcess[str]", message: str) -> None:
    assert ended.returncode == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("stream.schema_name=mine.toml", "cannot read schema 'mine.toml'"),
        ("dispatch.endpoint=10.0.0.4:5500", "'10.0.0.4:5500' is no endpoint"),
        ("ps.endpoints=tcp://127.0.0.1:x", "'tcp://127.0.0.1:x' is no endpoint"),
        ("telemetry.metrics_host=nowhere.invalid", "telemetry.metrics_host = 'nowhere.invalid' cannot be listened on"),
    ],
)
@pytest.mark.parametrize("command", ["up", "demo"])
def test_a_wrong_setting_is_found_before_anything_is_made(
    invoke: Invoke, tmp_path: Path, command: str, setting: str, message: str
) -> None:
    expect_one_line(invoke(command, "--set", setting), message)
    assert list(tmp_path.iterdir()) == []


def test_a_summary_that_could_not_be_written_stops_a_run_before_it_starts(invoke: Invoke, tmp_path: Path) -> None:
    ended = invoke("demo", "--run", tmp_path / "run", "--json", tmp_path / "missing" / "summary.json")
    assert (ended.returncode, "Traceback" in ended.stderr) == (2, False)
    assert "missing/summary.json" in ended.stderr
    assert not (tmp_path / "run" / "endpoints").exists()


@pytest.mark.parametrize(
    "arguments", [["demo", "--run", "{}/x"], ["keys", "{}/x"], ["produce", "--set", "stream.folder={}/x"]]
)
def test_a_folder_that_cannot_be_made_is_one_clear_line(invoke: Invoke, tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "file").touch()
    ended = invoke(*(argument.format(tmp_path / "file") for argument in arguments))
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    last = ended.stderr.splitlines()[-1]
    assert last.startswith(f"freshet: cannot use {tmp_path / 'file'}")
    assert "Not a directory" in last


def test_garbage_in_a_key_file_is_one_clear_line(invoke: Invoke, tmp_path: Path) -> None:
    for name in ("server.secret", "server.public"):
        (tmp_path / name).write_text("garbage garbage" if name.endswith("secret") else "garbage")
    ended = invoke("ps", "--shard", "0", "--endpoint", "tcp://127.0.0.1:*", "--set", f"curve_folder={tmp_path}")
    assert ended.returncode == 2
    assert "no usable CURVE keys for 'server'" in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


def test_a_key_folder_that_others_can_look_into_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o755)
    refused = CliRunner().invoke(app, ["keys", str(folder)])
    assert isinstance(refused.exception, ConfigError)
    assert "has mode 755" in str(refused.exception)
    assert list(folder.iterdir()) == []


def test_a_process_tells_its_settings_and_where_its_metrics_are(tmp_path: Path) -> None:
    chosen = ("api.port=0", f"folder={tmp_path}", "telemetry.log_format=json")
    process = start("api", *(part for setting in chosen for part in ("--set", setting)))
    wait_until((tmp_path / "endpoints" / "api").exists, process)
    address = (tmp_path / "endpoints" / "api.metrics").read_text()
    assert b"python_info" in urllib.request.urlopen(address, timeout=100).read()
    process.terminate()
    logged = [json.loads(line) for line in process.communicate(timeout=100)[0].splitlines()]
    (settings,) = (line["settings"] for line in logged if line["event"] == "settings")
    assert settings["folder"] == str(tmp_path)
    assert [line["address"] for line in logged if line["event"] == "serving metrics"] == [address]


def test_own_events_come_from_stdin(tmp_path: Path) -> None:
    event = '{"event_time": 1.5, "label": 1, "fields": {"user": "u17", "item": 42}}'
    log = ("--set", f"stream.folder={tmp_path}/[log]")
    produce = freshet("produce", "--dataset", "jsonl", "-", *log)
    ended = subprocess.run(
        produce, cwd=ROOT, env=environment(), input=f"{event}\nnonsense\n", capture_output=True, text=True, timeout=100
    )
    assert ended.returncode == 0, ended.stderr
    assert f"2 events (0 bad on purpose) in 2 records to topic 'clicks' in {tmp_path}/[log]" in ended.stderr


def test_keys_are_made_once_and_readable_by_their_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    assert CliRunner().invoke(app, ["keys", str(folder), "--worker", "edge-1"]).exit_code == 0
    assert {p.name for p in folder.iterdir()} == {"server.secret", "server.public", "edge-1.secret", "edge-1.public"}
    assert (folder / "edge-1.secret").stat().st_mode & 0o077 == 0
    before = (folder / "server.secret").read_text()
    assert CliRunner().invoke(app, ["keys", str(folder)]).exit_code != 0
    assert (folder / "server.secret").read_text() == before


def test_the_version_is_shown(invoke: Invoke) -> None:
    done = invoke("--version")
    assert (done.returncode, done.stdout) == (0, f"freshet {code_version()}\n")


def test_help_begins_with_where_to_start(invoke: Invoke) -> None:
    panels = [line.split()[1:3] for line in invoke("--help").stdout.splitlines() if line.startswith("╭─")]
    assert panels[1] == ["Start", "here"], panels

"""The units of systemd, checked by systemd's own checker, and their commands by Freshet's."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from infra.base.process import WRONG_SETTING
from infra.cli.main import app
from infra.run.settings import Settings
from tests.end_to_end.processes import ROOT

UNITS = sorted((ROOT / "infra" / "deploy" / "systemd").glob("*.service"))
INSTALLED = "/opt/freshet/bin/freshet"


def values(unit: Path, name: str) -> list[str]:
    """The values that a unit gives to one name."""
    return [line.partition("=")[2] for line in unit.read_text().splitlines() if line.startswith(f"{name}=")]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_a_unit(unit: Path, tmp_path: Path) -> None:
    (tmp_path / unit.name).write_text(unit.read_text().replace(INSTALLED, sys.executable))
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(tmp_path / unit.name)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (told.returncode, told.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_its_command_is_one_of_freshet_with_options_that_it_has(unit: Path) -> None:
    (line,) = values(unit, "ExecStart")
    program, command, *arguments = shlex.split(line)
    assert program == INSTALLED
    told = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
    assert all(word in told for word in arguments if word.startswith("--"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_it_waits_for_a_drain_and_does_not_repeat_a_wrong_setting(unit: Path) -> None:
    (minutes,) = values(unit, "TimeoutStopSec")
    assert float(minutes.removesuffix("min")) * 60 > Settings().dispatch.drain_seconds + 30
    assert values(unit, "RestartPreventExitStatus") == [str(WRONG_SETTING)]
    assert values(unit, "KillMode") == ["mixed"], "a worker that gets SIGTERM leaves by itself"

"""Freshet and its client as they are installed: their wheels, and an environment with those in place of this folder."""

import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path
from sysconfig import get_path

from tests.end_to_end.processes import ROOT, environment

CLIENT = ROOT / "client"
START = """#!{python}
from freshet.__main__ import main

main()
"""


def build_wheel(project: Path, folder: Path) -> Path:
    """The wheel of Freshet (``ROOT``) or of its client, built into a folder."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    built = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=100)
    assert built.returncode == 0, built.stderr
    name = {ROOT: "freshet", CLIENT: "freshet_client"}[project]
    (wheel,) = folder.glob(f"{name}-*.whl")
    return wheel


def environment_with(wheels: Iterable[Path], place: Path) -> Path:
    """The interpreter of a new environment: wheels, the command ``freshet``, and the libraries that are here."""
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    for wheel in wheels:
        zipfile.ZipFile(wheel).extractall(site_of(python))
    (site_of(python) / "required.pth").write_text(get_path("purelib"))  # whose own .pth, with this folder, is not read
    command = place / "bin" / "freshet"
    command.write_text(START.format(python=python))
    command.chmod(0o755)
    return python


def site_of(python: Path) -> Path:
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    return site


def outside_environment() -> dict[str, str]:
    """Variables for an interpreter that shall not know this folder."""
    return {name: value for name, value in environment().items() if not name.startswith("PYTHON")}

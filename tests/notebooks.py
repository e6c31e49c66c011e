"""Executes a notebook of docs as somebody does who has installed Freshet and Jupyter, and nothing of this folder."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import nbformat

from tests.end_to_end.processes import ROOT
from tests.wheels import outside_environment

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
CELL_SECONDS = 300
EXECUTE = "from nbclient.cli import main; main()"


def execute(notebook: Path, python: Path, here: Path) -> list[str]:
    """What each cell of code has put out in the end; a cell that raises fails.

    The notebook is copied into the folder ``here``, where its kernel runs with the given interpreter.
    """
    shutil.copy(notebook, here)
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [python, "-c", EXECUTE, notebook.name, "--inplace", f"--timeout={CELL_SECONDS}"],
        cwd=here,
        env={**outside_environment(), "PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    cells = nbformat.read(here / notebook.name, as_version=4).cells  # type: ignore[no-untyped-call]
    return ["".join(map(text_of, cell.outputs)) for cell in cells if cell.cell_type == "code"]


def text_of(output: Any) -> str:
    shown = output.get("data", {})
    return str(output.get("text") or shown.get("text/html") or shown.get("text/plain", ""))

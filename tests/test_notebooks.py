"""The notebooks of docs, each executed in a kernel of its own, in a fresh folder, from the first cell to the last."""

import os
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.end_to_end.processes import ROOT, children_of, environment

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
CELL_SECONDS = 300


def executed(name: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What each cell of code has put out in the end; a cell that raises fails."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for variable, value in {**environment(), "PATH": path}.items():
        monkeypatch.setenv(variable, value)
    notebook = nbformat.read(ROOT / "docs" / "notebooks" / name, as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=CELL_SECONDS, resources={"metadata": {"path": str(here)}}).execute()
    return ["".join(map(text_of, cell.outputs)) for cell in notebook.cells if cell.cell_type == "code"]


def text_of(output: Any) -> str:
    shown = output.get("data", {})
    return str(output.get("text") or shown.get("text/html") or shown.get("text/plain", ""))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(notebook: Path) -> None:
    cells = nbformat.read(notebook, as_version=4).cells  # type: ignore[no-untyped-call]
    assert len(cells) > 5
    assert [cell.outputs for cell in cells if cell.cell_type == "code" and cell.outputs] == []


def test_the_first_steps_end_with_a_model_that_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, guessed, quality, ranked, saved = executed("first_steps.ipynb", tmp_path, monkeypatch)
    assert "every event fits" in guessed
    assert "logloss=" in quality
    liked, other = (float(each) for each in ranked.partition("[")[2].partition("]")[0].split(","))
    assert liked > other
    assert "1" in saved


def test_a_model_of_one_s_own_is_trained_beside_a_built_in_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = executed("own_model.ipynb", tmp_path, monkeypatch)
    assert "class MyModel(nn.Module)" in outputs[0]
    assert [line.partition(":")[0] for line in outputs[3].splitlines()] == ["dcn", "pairs"]
    assert "chance" in outputs[-1]


def test_a_run_is_steered_from_a_notebook_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture, sent, predicted, changed, figures, ended = executed("steering.ipynb", tmp_path, monkeypatch)
    assert "samples/s" in picture, "it was drawn again after the first samples"
    assert "accepted=4000" in sent
    assert predicted.startswith("[0.")
    assert "worker-1 leaves" in changed
    assert "4,000 samples" in figures
    assert ended == "False"
    assert children_of(tmp_path) == []

"""The notebooks of docs, each executed with the wheels in a kernel of its own, in an empty folder, from the first cell
to the last.
"""

from pathlib import Path

import nbformat
import pytest

from tests.end_to_end.processes import ROOT, children_of
from tests.notebooks import NOTEBOOKS, execute
from tests.wheels import CLIENT, build_wheel, environment_with

FIRST_STEPS, OWN_MODEL, STEERING = NOTEBOOKS


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    return environment_with([build_wheel(project, folder) for project in (ROOT, CLIENT)], folder / "venv")


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(notebook: Path) -> None:
    cells = nbformat.read(notebook, as_version=4).cells  # type: ignore[no-untyped-call]
    assert len(cells) > 5
    assert [cell.outputs for cell in cells if cell.cell_type == "code" and cell.outputs] == []


def test_the_first_steps_end_with_a_model_that_ranks(python: Path, tmp_path: Path) -> None:
    _, guessed, quality, ranked, saved = execute(FIRST_STEPS, python, tmp_path)
    assert "every event fits" in guessed
    assert "logloss=" in quality
    liked, other = (float(each) for each in ranked.partition("[")[2].partition("]")[0].split(","))
    assert liked > other
    assert "1" in saved


def test_a_model_of_one_s_own_is_trained_beside_a_built_in_one(python: Path, tmp_path: Path) -> None:
    outputs = execute(OWN_MODEL, python, tmp_path)
    assert "class MyModel(nn.Module)" in outputs[0]
    assert [line.partition(":")[0] for line in outputs[3].splitlines()] == ["dcn", "pairs"]
    assert "chance" in outputs[-1]


def test_a_run_is_steered_from_a_notebook_and_leaves_nothing(python: Path, tmp_path: Path) -> None:
    picture, sent, predicted, changed, figures, ended = execute(STEERING, python, tmp_path)
    assert "samples/s" in picture, "it was drawn again after the first samples"
    assert "accepted=4000" in sent
    assert predicted.startswith("[0.")
    assert "worker-1 leaves" in changed
    assert "4,000 samples" in figures
    assert ended == "False"
    assert children_of(tmp_path) == []

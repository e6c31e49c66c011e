"""Which folders are runs: those of agents are not, and of two with one name it is the one that is under way."""

import os
from pathlib import Path

import pytest

from api.runs.places import find_folders, find_runs
from infra.run.folder import claim
from tests.api.dispatcher import write_settings


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Two runs of one name, the second the newer one, and the folder of an agent, the newest, of the same run."""
    folders = [tmp_path / name for name in ("older", "newer", "agent")]
    for seconds, folder in enumerate(folders):
        folder.mkdir()
        write_settings(folder, "edge")
        if folder.name == "agent":
            (folder / "journal").rmdir()
        os.utime(folder, (seconds, seconds))
    return folders


def test_an_agent_s_folder_is_no_run(runs: list[Path], tmp_path: Path) -> None:
    assert find_folders(tmp_path) == runs
    assert find_runs(tmp_path)["edge"].folder == runs[1]
    assert find_runs(runs[2]) == {}


def test_of_two_runs_with_one_name_the_one_under_way_is_followed(runs: list[Path], tmp_path: Path) -> None:
    with claim(runs[0]):
        assert find_runs(tmp_path)["edge"].folder == runs[0]
    os.utime(runs[0], (0, 0))
    assert find_runs(tmp_path)["edge"].folder == runs[1]

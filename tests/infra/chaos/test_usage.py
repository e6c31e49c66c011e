import shutil
from pathlib import Path

import pytest

from infra.chaos import usage
from infra.chaos.usage import sizes_in


def test_a_folder_that_is_removed_while_it_is_measured_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        (tmp_path / "checkpoints" / str(number)).mkdir(parents=True)
        (tmp_path / "checkpoints" / str(number) / "file").write_bytes(b"12345")
    measured: list[Path] = []

    def remove_others(file: Path) -> int:
        for number in range(3):
            if (folder := tmp_path / "checkpoints" / str(number)) != file.parent:
                shutil.rmtree(folder, ignore_errors=True)
        measured.append(file)
        return file.stat().st_size

    monkeypatch.setattr(usage, "_bytes_of", remove_others)
    assert sizes_in(tmp_path) == {"files": 0, "checkpoints": 5}
    assert len(measured) == 1

"""Crosses found in the first half of a made-up file, and trained on all of it, through real processes."""

import json
from pathlib import Path

import numpy as np

from tests.end_to_end.processes import run


def test_crosses_of_the_first_half_help_in_the_second(tmp_path: Path) -> None:
    draw = np.random.default_rng(5)
    with (tmp_path / "clicks.tsv").open("w") as file:
        for first, second in draw.integers(0, 4, (3000, 2)).tolist():
            label = int(draw.random() < (0.9 if (first + second) % 2 else 0.1))
            categories = [f"{first:08x}", f"{second:08x}", *["68fd1e64"] * 24]
            file.write("\t".join([str(label), *["1"] * 13, *categories]) + "\n")
    output = tmp_path / "out.json"
    ended = run("bench", "crosses", "--input", tmp_path / "clicks.tsv", "--format", "criteo", "--json", output)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert 'crosses = [["C1", "C2"]]' in ended.stdout
    none, built_in, suggested = json.loads(output.read_text())
    assert (none["crosses"], built_in["crosses"], suggested["crosses"]) == (0, 7, 1)
    assert suggested["second_half"]["logloss"] < none["second_half"]["logloss"] - 0.01

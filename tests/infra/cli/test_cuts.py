"""``freshet cuts``, on folders with cuts in them."""

import json
from pathlib import Path

import numpy as np
import pytest

from infra.base.storage import Storage
from infra.run.settings import load_settings, store_settings
from ps.cuts.manifest import CutManifest
from tests.dispatch.cuts.cuts import rows_file, take_cut
from tests.infra.cli.conftest import Invoke

KEYS = np.arange(100, 107, dtype=np.uint64)


@pytest.fixture
def cuts(tmp_path: Path) -> list[CutManifest]:
    """Of the run in a folder ``run``: two cuts of 4 and 7 rows, of which the second builds on the first."""
    store_settings(load_settings(folder=tmp_path / "run"))
    storage = Storage.at(tmp_path / "run" / "cuts")
    first = rows_file(storage, range(4), KEYS)
    second = rows_file(storage, range(2, 7), KEYS, cut=2)
    return [take_cut(storage, 1, (first,), 4), take_cut(storage, 2, (first, second), 7, step=9)]


def test_cuts_are_listed(cuts: list[CutManifest], invoke: Invoke) -> None:
    invoke("cuts", "pin", "--run", "run", "1")
    header, one, two = invoke("cuts", "list", "--run", "run").stdout.splitlines()
    assert header.split() == ["cut", "step", "taken", "rows", "files", "size", "pinned"]
    assert (one.split()[:2], one.split()[-1], two.split()[:2]) == (["1", "5"], "pinned", ["2", "9"])
    listed = json.loads(invoke("cuts", "list", "--run", "run", "--json").stdout)
    assert [(cut["number"], cut["rows"], cut["files"], cut["is_pinned"]) for cut in listed] == [
        (1, 4, 3, True),
        (2, 7, 4, False),
    ]
    assert listed[0]["bytes"] == cuts[0].shards[0].files[0].nbytes + cuts[0].dispatcher.nbytes


def test_a_cut_is_shown_with_its_files_positions_and_samples(cuts: list[CutManifest], invoke: Invoke) -> None:
    shown = invoke("cuts", "show", "--run", "run", "2").stdout
    for expected in ("after step 9 of generation 1", "18", "0: 9:0", *(file.name for file in cuts[1].shards[0].files)):
        assert expected in shown
    found = json.loads(invoke("cuts", "show", "--run", "run", "2", "--json").stdout)
    assert (found["samples"], found["positions"]) == (18, {"0": {"offset": 9, "index": 0}})
    assert found["manifest"]["step"] == 9


def test_whole_cuts_are_found_whole(cuts: list[CutManifest], invoke: Invoke) -> None:
    done = invoke("cuts", "verify", "--run", "run")
    assert (done.returncode, done.stdout.count(": whole")) == (0, 2)


def test_a_file_with_a_changed_bit_is_named_in_every_cut_that_needs_it(
    cuts: list[CutManifest], invoke: Invoke, tmp_path: Path
) -> None:
    name = cuts[0].shards[0].files[0].name
    path = tmp_path / "run" / "cuts" / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    done = invoke("cuts", "verify", "--run", "run", "--json")
    assert done.returncode == 1
    assert [name in " ".join(verdict["damage"]) for verdict in json.loads(done.stdout)] == [True, True]
    path.unlink()
    assert f"{name} does not exist" in invoke("cuts", "verify", "--run", "run", "2").stdout


def test_a_manifest_that_is_damaged_is_named(cuts: list[CutManifest], invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "run" / "cuts" / "00000001.json"
    path.write_bytes(path.read_bytes().replace(b'"step":5', b'"step":6'))
    done = invoke("cuts", "verify", "--run", "run")
    assert (done.returncode, "cut 1: damaged" in done.stdout, "cut 2: whole" in done.stdout) == (1, True, True)
    assert "00000001.json is damaged: its checksum is wrong" in done.stdout
    assert "00000001.json is damaged" in invoke("cuts", "list", "--run", "run").stdout
    assert "00000001.json is damaged" in invoke("cuts", "show", "--run", "run", "1").stderr


def test_cuts_with_rows_left_out_are_not_whole(cuts: list[CutManifest], invoke: Invoke, tmp_path: Path) -> None:
    storage = Storage.at(tmp_path / "run" / "cuts")
    take_cut(storage, 3, cuts[1].shards[0].files[1:], 7)
    done = invoke("cuts", "verify", "--run", "run", "3")
    assert done.returncode == 1
    assert "no key for 2 of its 7 rows, first row 0" in done.stdout


def test_pins_are_set_and_taken_back(cuts: list[CutManifest], invoke: Invoke, tmp_path: Path) -> None:
    assert invoke("cuts", "pin", "--run", "run", "2").stdout == "cut 2 is kept until it is unpinned\n"
    assert (tmp_path / "run" / "cuts" / "00000002.pinned").exists()
    assert "cut 1 is not pinned; expected one of [2]" in invoke("cuts", "unpin", "--run", "run", "1").stderr
    assert invoke("cuts", "unpin", "--run", "run", "2").returncode == 0
    assert not (tmp_path / "run" / "cuts" / "00000002.pinned").exists()
    for command in ("pin", "verify"):
        done = invoke("cuts", command, "--run", "run", "9")
        assert (done.returncode, "there is no cut 9; expected one of [1, 2]" in done.stderr) == (2, True)


def test_cuts_are_found_where_the_settings_say(invoke: Invoke, tmp_path: Path) -> None:
    store_settings(load_settings(None, [f"cuts.url=file://{tmp_path}/elsewhere"], folder=tmp_path / "run"))
    storage = Storage.at(tmp_path / "elsewhere")
    take_cut(storage, 4, (rows_file(storage, range(7), KEYS, cut=4),), 7)
    assert json.loads(invoke("cuts", "list", "--run", "run", "--json").stdout)[0]["number"] == 4
    assert "no settings of a run" in invoke("cuts", "list", "--run", "./nowhere").stderr


def test_cuts_in_a_bucket_are_listed_verified_and_pinned(invoke: Invoke, tmp_path: Path, bucket: str) -> None:
    head, question, options = bucket.partition("?")
    url = f"{head}/commands{question}{options}"
    store_settings(load_settings(None, [f"cuts.url={url}"], folder=tmp_path / "run"))
    storage = Storage.at(url)
    manifest = take_cut(storage, 4, (rows_file(storage, range(7), KEYS, cut=4),), 7)
    assert invoke("cuts", "verify", "--run", "run").returncode == 0
    assert invoke("cuts", "pin", "--run", "run", "4").returncode == 0
    assert json.loads(invoke("cuts", "list", "--run", "run", "--json").stdout)[0]["is_pinned"]
    storage.delete(manifest.dispatcher.name)
    done = invoke("cuts", "verify", "--run", "run")
    assert (done.returncode, manifest.dispatcher.name in done.stdout) == (1, True)

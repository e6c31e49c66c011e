"""``freshet checkpoints``, on folders with checkpoints in them."""

import json
from pathlib import Path

import numpy as np
import pytest

from infra.base.storage import Storage
from infra.run.settings import load_settings, store_settings
from ps.checkpoints.manifest import CheckpointManifest
from tests.dispatch.checkpoints.checkpoints import rows_file, take_checkpoint
from tests.infra.cli.conftest import Invoke

KEYS = np.arange(100, 107, dtype=np.uint64)


@pytest.fixture
def checkpoints(tmp_path: Path) -> list[CheckpointManifest]:
    """Of the run in a folder ``run``: two checkpoints of 4 and 7 rows, of which the second builds on the first."""
    store_settings(load_settings(folder=tmp_path / "run"))
    storage = Storage.at(tmp_path / "run" / "checkpoints")
    first = rows_file(storage, range(4), KEYS)
    second = rows_file(storage, range(2, 7), KEYS, checkpoint=2)
    return [take_checkpoint(storage, 1, (first,), 4), take_checkpoint(storage, 2, (first, second), 7, step=9)]


def test_checkpoints_are_listed(checkpoints: list[CheckpointManifest], invoke: Invoke) -> None:
    invoke("checkpoints", "pin", "--run", "run", "1")
    header, one, two = invoke("checkpoints", "list", "--run", "run").stdout.splitlines()
    assert header.split() == ["checkpoint", "step", "taken", "rows", "files", "size", "pinned"]
    assert (one.split()[:2], one.split()[-1], two.split()[:2]) == (["1", "5"], "pinned", ["2", "9"])
    listed = json.loads(invoke("checkpoints", "list", "--run", "run", "--json").stdout)
    assert [
        (checkpoint["number"], checkpoint["rows"], checkpoint["files"], checkpoint["is_pinned"])
        for checkpoint in listed
    ] == [
        (1, 4, 3, True),
        (2, 7, 4, False),
    ]
    assert listed[0]["bytes"] == checkpoints[0].shards[0].files[0].nbytes + checkpoints[0].dispatcher.nbytes


def test_the_command_of_earlier_releases_works_with_a_notice_and_so_does_their_folder(
    checkpoints: list[CheckpointManifest], invoke: Invoke, tmp_path: Path
) -> None:
    (tmp_path / "run" / "checkpoints").rename(tmp_path / "run" / "cuts")
    old, new = (invoke(command, "list", "--run", "run", "--json") for command in ("cuts", "checkpoints"))
    assert [each["number"] for each in json.loads(new.stdout)] == [1, 2]
    assert old.stdout == new.stdout
    assert "is called 'freshet checkpoints' now" in old.stderr
    assert new.stderr == ""


def test_a_checkpoint_is_shown_with_its_files_positions_and_samples(
    checkpoints: list[CheckpointManifest], invoke: Invoke
) -> None:
    shown = invoke("checkpoints", "show", "--run", "run", "2").stdout
    for expected in (
        "after step 9 of generation 1",
        "18",
        "0: 9:0",
        *(file.name for file in checkpoints[1].shards[0].files),
    ):
        assert expected in shown
    found = json.loads(invoke("checkpoints", "show", "--run", "run", "2", "--json").stdout)
    assert (found["samples"], found["positions"]) == (18, {"0": {"offset": 9, "index": 0}})
    assert found["manifest"]["step"] == 9


def test_whole_checkpoints_are_found_whole(checkpoints: list[CheckpointManifest], invoke: Invoke) -> None:
    done = invoke("checkpoints", "verify", "--run", "run")
    assert (done.returncode, done.stdout.count(": whole")) == (0, 2)


def test_a_file_with_a_changed_bit_is_named_in_every_checkpoint_that_needs_it(
    checkpoints: list[CheckpointManifest], invoke: Invoke, tmp_path: Path
) -> None:
    name = checkpoints[0].shards[0].files[0].name
    path = tmp_path / "run" / "checkpoints" / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    done = invoke("checkpoints", "verify", "--run", "run", "--json")
    assert done.returncode == 1
    assert [name in " ".join(verdict["damage"]) for verdict in json.loads(done.stdout)] == [True, True]
    path.unlink()
    assert f"{name} does not exist" in invoke("checkpoints", "verify", "--run", "run", "2").stdout


def test_a_manifest_that_is_damaged_is_named(
    checkpoints: list[CheckpointManifest], invoke: Invoke, tmp_path: Path
) -> None:
    path = tmp_path / "run" / "checkpoints" / "00000001.json"
    path.write_bytes(path.read_bytes().replace(b'"step":5', b'"step":6'))
    done = invoke("checkpoints", "verify", "--run", "run")
    assert (done.returncode, "checkpoint 1: damaged" in done.stdout, "checkpoint 2: whole" in done.stdout) == (
        1,
        True,
        True,
    )
    assert "00000001.json is damaged: its checksum is wrong" in done.stdout
    assert "00000001.json is damaged" in invoke("checkpoints", "list", "--run", "run").stdout
    assert "00000001.json is damaged" in invoke("checkpoints", "show", "--run", "run", "1").stderr


def test_checkpoints_with_rows_left_out_are_not_whole(
    checkpoints: list[CheckpointManifest], invoke: Invoke, tmp_path: Path
) -> None:
    storage = Storage.at(tmp_path / "run" / "checkpoints")
    take_checkpoint(storage, 3, checkpoints[1].shards[0].files[1:], 7)
    done = invoke("checkpoints", "verify", "--run", "run", "3")
    assert done.returncode == 1
    assert "no key for 2 of its 7 rows, first row 0" in done.stdout


def test_pins_are_set_and_taken_back(checkpoints: list[CheckpointManifest], invoke: Invoke, tmp_path: Path) -> None:
    assert invoke("checkpoints", "pin", "--run", "run", "2").stdout == "checkpoint 2 is kept until it is unpinned\n"
    assert (tmp_path / "run" / "checkpoints" / "00000002.pinned").exists()
    assert (
        "checkpoint 1 is not pinned; expected one of [2]" in invoke("checkpoints", "unpin", "--run", "run", "1").stderr
    )
    assert invoke("checkpoints", "unpin", "--run", "run", "2").returncode == 0
    assert not (tmp_path / "run" / "checkpoints" / "00000002.pinned").exists()
    for command in ("pin", "verify"):
        done = invoke("checkpoints", command, "--run", "run", "9")
        assert (done.returncode, "there is no checkpoint 9; expected one of [1, 2]" in done.stderr) == (2, True)


def test_checkpoints_are_found_where_the_settings_say(invoke: Invoke, tmp_path: Path) -> None:
    store_settings(load_settings(None, [f"checkpoints.url=file://{tmp_path}/elsewhere"], folder=tmp_path / "run"))
    storage = Storage.at(tmp_path / "elsewhere")
    take_checkpoint(storage, 4, (rows_file(storage, range(7), KEYS, checkpoint=4),), 7)
    assert json.loads(invoke("checkpoints", "list", "--run", "run", "--json").stdout)[0]["number"] == 4
    assert "no settings of a run" in invoke("checkpoints", "list", "--run", "./nowhere").stderr


def test_checkpoints_in_a_bucket_are_listed_verified_and_pinned(invoke: Invoke, tmp_path: Path, bucket: str) -> None:
    head, question, options = bucket.partition("?")
    url = f"{head}/commands{question}{options}"
    store_settings(load_settings(None, [f"checkpoints.url={url}"], folder=tmp_path / "run"))
    storage = Storage.at(url)
    manifest = take_checkpoint(storage, 4, (rows_file(storage, range(7), KEYS, checkpoint=4),), 7)
    assert invoke("checkpoints", "verify", "--run", "run").returncode == 0
    assert invoke("checkpoints", "pin", "--run", "run", "4").returncode == 0
    assert json.loads(invoke("checkpoints", "list", "--run", "run", "--json").stdout)[0]["is_pinned"]
    storage.delete(manifest.dispatcher.name)
    done = invoke("checkpoints", "verify", "--run", "run")
    assert (done.returncode, manifest.dispatcher.name in done.stdout) == (1, True)

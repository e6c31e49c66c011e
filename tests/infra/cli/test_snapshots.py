"""``freshet snapshots``, on a folder with checkpoints in it and nobody running."""

import json
import re
from pathlib import Path
from time import time
from typing import Any

import msgspec
import pytest

from dispatch.checkpoints.retention import drop_old, pinned_numbers
from infra.base.storage import Storage
from infra.run.settings import load_settings, store_settings
from ingest.keys import key_of
from ps.checkpoints.choice import read_choice
from ps.checkpoints.manifest import CheckpointFigures, Verdict, write_manifest
from ps.checkpoints.served import ServedRecord, write_served
from tests.infra.cli.conftest import Invoke
from tests.ingest.topics import SMALL_TEXT, write_json
from tests.serving.snapshots.checkpoints import make_checkpoint, run_model, sample_events

AT = ("--run", "run")
MODEL = {"name": "wdl", "mlp": (6, 5)}


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """Of the run in a folder ``run``: three checkpoints, of which the third is held back and has more rows."""
    (tmp_path / "small.toml").write_text(SMALL_TEXT)
    stream = {"schema_name": str(tmp_path / "small.toml"), "folder": str(tmp_path / "log")}
    store_settings(load_settings(run="r", seed=7, folder=tmp_path / "run", stream=stream, model=MODEL, rows={"dim": 4}))
    storage, of = Storage.at(tmp_path / "run" / "checkpoints"), run_model("wdl")
    for number, known in ((1, 4), (2, 4), (3, 6)):
        manifest = make_checkpoint(storage, of, number, known=known)
        held = Verdict(("logloss is 0.9",)) if number == 3 else Verdict()
        figures = CheckpointFigures(samples=100, logloss=0.1 * number, auc=0.7 if number == 2 else 0.0)
        write_manifest(storage, msgspec.structs.replace(manifest, verdict=held, figures=figures))
    return storage


def listed(invoke: Invoke) -> dict[int, dict[str, Any]]:
    return {each["checkpoint"]: each for each in json.loads(invoke("snapshots", "list", *AT, "--json").stdout)}


def wanted(invoke: Invoke) -> list[int]:
    return [checkpoint for checkpoint, told in listed(invoke).items() if told["is_wanted"]]


def test_snapshots_are_listed_with_verdict_and_the_one_that_is_wanted(storage: Storage, invoke: Invoke) -> None:
    header, one, two, three = invoke("snapshots", "list", *AT).stdout.splitlines()
    assert header.split() == ["checkpoint", "timeline", "step", "taken", "age", "rows", "verdict", "served"]
    assert (one.split()[-1], two.split()[-2:]) == ("good", ["good", "wanted"])
    assert "held back: logloss is 0.9" in three
    assert [told["step"] for told in listed(invoke).values()] == [5, 10, 15]


def test_a_pin_keeps_its_checkpoint_and_lets_the_one_before_go(storage: Storage, invoke: Invoke) -> None:
    assert "checkpoint 3 is served" in invoke("snapshots", "pin", "3", *AT).stdout
    assert (wanted(invoke), pinned_numbers(storage)) == ([3], set())
    invoke("snapshots", "pin", "1", *AT, "--reason", "better")
    choice = read_choice(storage)
    assert (choice.pinned, choice.reason) == (1, "better")
    assert choice.actor
    assert drop_old(storage, 1).numbers == (1, 2, 3)  # wanted; good; the newest
    invoke("snapshots", "unpin", *AT)
    assert wanted(invoke) == [2]
    assert drop_old(storage, 1).numbers == (2, 3)


def test_a_checkpoint_that_an_operator_keeps_is_kept_over_a_pin_and_an_unpin(storage: Storage, invoke: Invoke) -> None:
    invoke("checkpoints", "pin", "run", "1")
    for number in ("1", "2"):
        invoke("snapshots", "pin", number, *AT)
    invoke("snapshots", "unpin", *AT)
    assert pinned_numbers(storage) == {1}


@pytest.mark.parametrize(("served", "targets"), [((), [1]), ((3, 2), [2, 1]), ((2,), [1]), ((9,), [2, 1])])
def test_a_rollback_pins_the_good_snapshot_before_what_is_served(
    storage: Storage, invoke: Invoke, served: tuple[int, ...], targets: list[int]
) -> None:
    for checkpoint in served:
        write_served(storage, f"serve-{checkpoint}", ServedRecord(checkpoint, 0, 5 * checkpoint, at_seconds=time()))
    for target in targets:
        assert json.loads(invoke("snapshots", "rollback", *AT, "--json").stdout)["pinned"] == target
    done = invoke("snapshots", "rollback", *AT)
    assert (done.returncode, wanted(invoke)) == (2, [1])
    assert "no older snapshot may be served; expected one to go back to" in done.stderr


@pytest.mark.parametrize("repair", ["pin 2", "unpin"])
def test_a_damaged_choice_is_repaired_by_the_commands_that_the_message_names(
    storage: Storage, invoke: Invoke, tmp_path: Path, repair: str
) -> None:
    (tmp_path / "run" / "checkpoints" / "serving.json").write_bytes(b"nonsense")
    found = invoke("snapshots", "list", *AT)
    assert (found.returncode, f"freshet snapshots {repair.split()[0]}" in found.stderr) == (1, True)
    done = invoke("snapshots", *repair.split(), *AT)
    assert (done.returncode, wanted(invoke)) == (0, [2]), done.stderr


def test_a_snapshot_that_is_released_goes_out(storage: Storage, invoke: Invoke) -> None:
    invoke("snapshots", "release", "3", *AT)
    assert (wanted(invoke), listed(invoke)[3]["is_released"]) == ([3], True)
    assert "released: logloss is 0.9" in invoke("snapshots", "show", "3", *AT).stdout


def test_storage_alone_is_enough(storage: Storage, invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "run" / "settings.json").unlink()
    url = ("--checkpoints-url", str(tmp_path / "run" / "checkpoints"))
    assert len(json.loads(invoke("snapshots", "list", *url, "--json").stdout)) == 3
    assert invoke("snapshots", "pin", "2", *url).returncode == 0
    old = invoke("snapshots", "list", "--cuts-url", url[1], "--json")
    assert (len(json.loads(old.stdout)), old.stderr.count("--cuts-url is now --checkpoints-url")) == (3, 1)


def test_two_snapshots_are_compared(storage: Storage, invoke: Invoke) -> None:
    found = json.loads(invoke("snapshots", "diff", "2", "3", *AT, "--json").stdout)
    (before, after), shared = found["rows"], found["rows"][0] - found["removed"]
    assert (found["added"], found["changed"], found["removed"]) == (after - shared, shared, 0)
    assert before < after
    assert [figures["logloss"] for figures in found["figures"]] == pytest.approx([0.2, 0.3])
    distances = [change["distance"] for change in found["largest"]]
    assert distances == sorted(distances, reverse=True)
    assert found["dense_distance"] > 0
    assert "dense weights moved" in invoke("snapshots", "diff", "2", "3", *AT).stdout
    same = json.loads(invoke("snapshots", "diff", "2", "2", *AT, "--json").stdout)
    assert (same["changed"], same["added"], same["dense_distance"], same["largest"]) == (0, 0, 0.0, [])


def test_rows_that_changed_are_named_by_field_and_value_where_events_tell_them(
    storage: Storage, invoke: Invoke, tmp_path: Path
) -> None:
    def changed() -> dict[str, str | None]:
        found = json.loads(invoke("snapshots", "diff", "1", "2", *AT, "--json").stdout)
        return {each["key"]: each["value"] for each in found["largest"]}

    user = f"{key_of('user', 'u1'):016x}"
    assert changed()[user] is None
    assert re.search(rf"unknown +unknown value +{user} ", invoke("snapshots", "diff", "1", "2", *AT).stdout)
    write_json(tmp_path / "log", sample_events())
    assert changed()[user] == '"u1"'
    shown = invoke("snapshots", "diff", "1", "2", *AT).stdout
    assert re.search(rf'user +"u1" +{user} ', shown), shown
    assert "unknown" not in shown


def test_a_comparison_shows_the_quality_of_both(storage: Storage, invoke: Invoke) -> None:
    shown = [line.split() for line in invoke("snapshots", "diff", "2", "3", *AT).stdout.splitlines()]
    assert ["verdict", "good", "logloss", "is", "0.9"] in shown
    assert ["logloss", "0.2000", "0.3000"] in shown
    assert ["AUC", "0.7000", "not", "known"] in shown


def test_a_snapshot_is_exported_once(storage: Storage, invoke: Invoke, tmp_path: Path) -> None:
    done = invoke("snapshots", "export", "2", "exported", *AT, "--json")
    assert json.loads(done.stdout)["files"] == ["model.json", "dense.safetensors", "rows.safetensors"]
    about = json.loads((tmp_path / "exported" / "model.json").read_text())
    assert (about["version"]["checkpoint"], about["seed"], about["schema"]["name"]) == (2, "0x7", "small")
    again = invoke("snapshots", "export", "2", "exported", *AT)
    assert (again.returncode, "exported exists; expected a new folder" in again.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "9"], "there is no checkpoint 9; expected one of [1, 2, 3]"),
        (["pin", "9"], "there is no checkpoint 9"),
        (["unpin"], "no snapshot is pinned"),
        (["release", "1"], "checkpoint 1 is not held back"),
        (["export", "9", "exported"], "there is no checkpoint 9"),
        (["diff", "1", "9"], "there is no checkpoint 9"),
    ],
)
def test_what_cannot_be_done_is_told(storage: Storage, invoke: Invoke, arguments: list[str], message: str) -> None:
    done = invoke("snapshots", *arguments, *AT)
    assert (done.returncode, message in done.stderr) == (2, True)


def test_a_damaged_manifest_is_named_and_the_others_are_listed(
    storage: Storage, invoke: Invoke, tmp_path: Path
) -> None:
    (tmp_path / "run" / "checkpoints" / "00000002.json").write_text("{}")
    found = listed(invoke)
    assert "00000002.json is damaged" in found.pop(2)["damage"]
    assert [checkpoint for checkpoint, told in found.items() if told["is_wanted"]] == [1]

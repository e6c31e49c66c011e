"""``freshet check`` as scripts use it: its exit status, its lines and its JSON."""

import json
from pathlib import Path

import msgspec
import pytest

from ingest.codec.json_events import encode_json
from ingest.convert import Event
from tests.infra.cli.conftest import Invoke

SCHEMA = 'name = "mine"\ntables = [{name = "user"}, {name = "banner"}]\ndense_fields = [{name = "price", max = 10}]\n'


@pytest.fixture
def write(tmp_path: Path) -> Path:
    (tmp_path / "mine.toml").write_text(SCHEMA)
    good = [Event(1.0, 1, {"user": "u", "banner": "top", "price": 3}), Event(2.0, 0, {"user": "v"})]
    bad = [Event(1.0, 1, {"user": "u", "baner": "[red]", "price": 30}), Event(2.0, 0, {"user": "v"})]
    for name, chosen in (("good", good), ("bad", bad)):
        (tmp_path / f"{name}.jsonl").write_bytes(b"\n".join(map(encode_json, chosen)))
    return tmp_path


def test_events_that_fit_are_status_0(write: Path, invoke: Invoke) -> None:
    done = invoke("check", write / "good.jsonl", "--schema", write / "mine.toml")
    assert (done.returncode, done.stderr) == (0, "")
    assert "every event fits, and every field is there" in done.stdout


def test_what_is_wrong_is_told_with_status_1(write: Path, invoke: Invoke) -> None:
    done = invoke("check", write / "bad.jsonl", "--set", f"stream.schema_name={write / 'mine.toml'}")
    assert done.returncode == 1
    for told in (
        "wrong: no event has field banner; some have baner",
        "wrong: 1 of 2 events would be dead letters: 1 oversized",
        "dead letter, for example: oversized: field 'price' is 30, expected 0 to 10",
        'baner (meant for banner?)    50.0%         1                   text   "[red]"',
    ):
        assert told in done.stdout


def test_a_file_without_a_named_schema_is_told_how_to_get_one(write: Path, invoke: Invoke) -> None:
    done = invoke("check", write / "good.jsonl")
    assert done.returncode == 1
    assert f"no schema was named, so this is the built-in synthetic; one for this file: freshet init {write}" in (
        done.stdout
    )
    assert "no schema was named" not in invoke("check", write / "good.jsonl", "--schema", "synthetic").stdout


@pytest.mark.parametrize("target", ["-", "found.json"])
def test_findings_are_written_as_json(write: Path, invoke: Invoke, target: str) -> None:
    done = invoke("check", write / "bad.jsonl", "--schema", write / "mine.toml", "--json", target)
    found = json.loads(done.stdout if target == "-" else (write / target).read_text())
    assert done.returncode == 1
    assert [(each["name"], each["share"]) for each in found["fields"]] == [("user", 1.0), ("banner", 0), ("price", 0.5)]
    assert len(found["faults"]) == 2


def test_the_stream_of_the_settings_is_looked_at_by_default(write: Path, invoke: Invoke) -> None:
    assert invoke("produce", "--limit", "50").returncode == 0
    assert "50 good events, 0 dead letters" in invoke("check").stdout
    done = invoke("check", "--schema", "criteo")
    assert done.returncode == 1
    assert "wrong: no event has any of the fields C1, C2," in done.stdout


def test_a_place_or_schema_that_is_missing_is_status_2(write: Path, invoke: Invoke) -> None:
    for arguments in (("check", "nowhere"), ("check", write / "good.jsonl", "--schema", "nowhere.toml")):
        done = invoke(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert "nowhere" in done.stderr


def test_an_event_cannot_write_to_the_terminal(write: Path, invoke: Invoke) -> None:
    payload = msgspec.json.encode({"event_time": 1, "label": 1, "fields": {"\x1b[2J": "\x9b", "user": "\x1b]0;x\x07"}})
    (write / "odd.jsonl").write_bytes(payload)
    done = invoke("check", write / "odd.jsonl", "--schema", write / "mine.toml")
    assert all(letter.isprintable() or letter == "\n" for letter in done.stdout)


def test_crosses_are_suggested_as_a_table_and_as_a_line(write: Path, invoke: Invoke) -> None:
    clicks = (Event(float(i), int(i % 2 == i // 2 % 2), {"user": i % 2, "banner": i // 2 % 2}) for i in range(1000))
    (write / "xor.jsonl").write_bytes(b"\n".join(map(encode_json, clicks)))
    (write / "two.toml").write_text('name = "two"\ntables = [{name = "user"}, {name = "banner"}]\n')
    target = write / "found.json"
    done = invoke("check", write / "xor.jsonl", "--schema", write / "two.toml", "--suggest-crosses", "--json", target)
    assert done.returncode == 0, done.stderr
    assert 'crosses = [["user", "banner"]]' in done.stdout
    (cross,) = json.loads(target.read_text())["suggested"]["crosses"]
    assert (cross["tables"], cross["keys"]) == (["user", "banner"], 4)

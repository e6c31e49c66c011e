"""``freshet plan`` as a process: on a file, on a run's topic, on made-up events."""

import json
from pathlib import Path

import pytest

from benchmarks.clicks import made_up_samples, write_topic
from infra.run.settings import load_settings, store_settings
from tests.end_to_end.processes import run

SCHEMA = "name = 'mine'\n[[tables]]\nname = 'user'\n[[tables]]\nname = 'item'\n"
GIVEN = ("--compute-ms", "10", "--links", "0.1,1,0.1")


def written(folder: Path, events: int) -> tuple[Path, tuple[str, ...]]:
    """A file of so many events, and the settings with its schema."""
    file, schema = folder / "clicks.jsonl", folder / "mine.toml"
    schema.write_text(SCHEMA)
    told = [{"event_time": 1.7e9 + n, "label": n % 2, "fields": {"user": n % 40, "item": n % 7}} for n in range(events)]
    file.write_text("".join(f"{json.dumps(event)}\n" for event in told) + "no event\n")
    return file, ("--set", f"stream.schema_name={schema}", "--set", "stream.batch=60")


def test_a_file_of_events_is_planned_for_and_drawn(tmp_path: Path) -> None:
    file, settings = written(tmp_path, 600)
    output, picture = tmp_path / "plan.json", tmp_path / "plan.svg"
    ended = run("plan", file, *settings, *GIVEN, "--json", output, "--plot", picture)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    plan = json.loads(output.read_text())
    assert (plan["batches"], plan["batch"], plan["links_gbit"]) == (10, 60, [1, 0.1, 0.1])
    assert [each["workers"] for each in plan["candidates"]] == [1, 2, 3]
    # 47 distinct rows, all in the cache of one worker after the first batches
    assert plan["candidates"][0]["rows_pulled"] == [0]
    assert plan["candidates"][0]["ms"]["compute"] == pytest.approx(0.6)
    assert "10 batches of 60 samples, of which the later half counts" in " ".join(ended.stdout.split())
    assert "joint:elastic, given these times" in ended.stdout
    assert picture.read_text().startswith("<?xml")


def test_the_topic_of_a_run_is_planned_for_with_its_settings(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    own = ["stream.schema_name=movielens", "stream.batch=32", f"stream.folder={tmp_path / 'log'}", "dispatch.workers=2"]
    links = ["dispatch.links_gbit=1,1", "dispatch.uplinks_gbit=0.1,0.1"]
    settings = load_settings(None, [*own, *links], folder=folder)
    write_topic(settings.stream, made_up_samples(settings.event_schema, 300))
    store_settings(settings)
    output = tmp_path / "plan.json"
    ended = run("plan", "--run", folder, "--json", output)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    plan = json.loads(output.read_text())
    assert (plan["batches"], plan["links_gbit"], plan["own"]) == (9, [1.0, 1.0], None)
    assert [each["policy"] for each in plan["candidates"]] == ["round_robin", "esd:1"]
    assert plan["candidates"][0]["ms"]["compute"] > 0
    assert "measured here on" in plan["compute"]
    assert "uplinks count as fast as downlinks" in ended.stdout


def test_made_up_events_do_where_there_are_none(tmp_path: Path) -> None:
    output = tmp_path / "plan.json"
    ended = run("plan", *GIVEN, "--batches", "5", "--set", "dispatch.policy=esd:1", "--json", output)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert json.loads(output.read_text())["batches"] == 5


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--links", "1,fast"), "correct --links"),
        (("--plot", "plan.txt"), "expected a .svg, .png or .pdf file"),
        (("nowhere.jsonl",), "no file at nowhere.jsonl"),
        (("nowhere.jsonl", "--run", "runs/none"), "runs/none"),
    ],
)
def test_what_cannot_be_planned_is_told_in_one_line(arguments: tuple[str, ...], told: str) -> None:
    ended = run("plan", *arguments)
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert told in " ".join(ended.stderr.split())
    assert "Traceback" not in ended.stderr


def test_too_few_events_are_refused(tmp_path: Path) -> None:
    file, settings = written(tmp_path, 100)
    ended = run("plan", file, *settings, *GIVEN)
    assert ended.returncode == 2
    assert "makes 1 whole batches of 60 samples; expected at least 4" in " ".join(ended.stderr.split())

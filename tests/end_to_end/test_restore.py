"""A run whose machine is lost with its folder goes on elsewhere, from the copy of its journal on Kafka."""

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

from dispatch.journal.history import JOURNAL, read_history
from dispatch.journal.log import identity_of, read_records
from dispatch.journal.records import GenerationStarted
from ingest.codec.json_events import encode_json
from tests.brokers import TestBroker, fill_topic
from tests.end_to_end.processes import children_of, run, start, wait_until
from tests.ingest.topics import events

SAMPLES = 64 * 40
SMALL = ("stream.batch=64", "dispatch.workers=2", "ps.shards=1", "model.mlp=8", "stream.linger_seconds=0.1")
WHERE_EVENTS_STAY = ("stream.source=kafka", "checkpoints.seconds=0.5", "checkpoints.kept=100")


def sets(*settings: str) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


def lose(process_id: int, folder: Path) -> None:
    """Kills the whole run at once, as a machine that loses power would."""
    for process in children_of(folder):
        process.kill()
    os.killpg(process_id, signal.SIGKILL)
    wait_until(lambda: not children_of(folder))


def test_a_run_whose_folder_is_lost_goes_on_from_the_copy_of_its_journal(kafka: TestBroker, tmp_path: Path) -> None:
    events_topic, letters, copy = kafka.new_topic(2), kafka.new_topic(1), kafka.new_name()
    encoded = [encode_json(event) for event in events(SAMPLES)]
    fill_topic(kafka.config(), events_topic, {0: encoded[: SAMPLES // 4]})
    old, new = tmp_path / "old", tmp_path / "new"
    broker = f"kafka.servers={','.join(kafka.servers)}"
    topics = f"stream.topic={events_topic}", f"stream.dead_letter_topic={letters}", f"dispatch.journal_topic={copy}"
    settings = (*SMALL, *WHERE_EVENTS_STAY, *topics, broker, f"checkpoints.url={tmp_path / 'checkpoints'}", "run=lost")
    database = "api.port=0", f"api.database=sqlite:///{tmp_path / 'history.db'}"
    begun = start("up", "--restore", "--run", old, "--samples", str(SAMPLES), *sets(*settings, *database))
    wait_until(lambda: read_history(old / JOURNAL).samples >= SAMPLES // 4 and bool(taken(old)), begun)
    lose(begun.pid, old)
    begun.communicate()
    before = read_history(old / JOURNAL)

    restored = run("restore", copy, "--run", new, *sets(broker))
    assert restored.returncode == 0, restored.stderr
    assert "not in the copy, and to be given with --set where needed: api.database" in restored.stdout
    assert f"'freshet up --run {new}' resumes it" in restored.stdout
    assert identity_of(new / JOURNAL) == identity_of(old / JOURNAL)
    assert read_history(new / JOURNAL).step == before.step
    fill_topic(kafka.config(), events_topic, {1: encoded[SAMPLES // 4 :]})
    resumed = run("up", "--run", new, "--samples", str(SAMPLES), *sets(*database))
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    after = read_history(new / JOURNAL)
    assert (after.ended is not None, after.samples) == (True, SAMPLES)
    assert after.newest is not None
    assert before.newest is not None
    assert after.newest.number > before.newest.number
    assert after.steps[: len(before.steps)] == before.steps, "steps that were on record were decided again"
    generations = [record for record in read_records(new / JOURNAL) if isinstance(record, GenerationStarted)]
    with closing(sqlite3.connect(tmp_path / "history.db")) as history:
        (runs,) = history.execute("select count(*) from runs").fetchone()
        found = [number for (number,) in history.execute("select number from generations order by number")]
    assert (runs, found) == (1, [record.number for record in generations])
    verified = run("verify", "--run", new)
    assert verified.returncode == 0, verified.stdout + verified.stderr

    late = run("up", "--no-api", "--run", old, "--samples", str(SAMPLES))
    assert late.returncode != 0
    assert "goes on elsewhere" in late.stdout + late.stderr
    assert read_history(old / JOURNAL).step == before.step


def taken(folder: Path) -> tuple[object, ...]:
    return read_history(folder / JOURNAL).checkpoints


def test_a_topic_without_a_journal_is_told(kafka: TestBroker, tmp_path: Path) -> None:
    broker = sets(f"kafka.servers={','.join(kafka.servers)}")
    missing = run("restore", "no-such-topic", "--run", tmp_path / "run", *broker)
    assert (missing.returncode, "'no-such-topic' holds no journal" in missing.stderr) == (2, True), missing.stderr
    assert not (tmp_path / "run").exists()

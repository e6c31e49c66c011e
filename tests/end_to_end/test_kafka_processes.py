"""The real command over a broker that it starts itself."""

import json
import subprocess
from pathlib import Path

from dispatch.journal.history import read_manifests
from ingest.codec.json_events import encode_json
from ingest.kafka.config import KafkaConfig
from tests.brokers import TestBroker, fill_topic
from tests.end_to_end.processes import ROOT, children_of, environment, freshet, start, wait_until
from tests.ingest.topics import events

SMALL = ("stream.batch=64", "dispatch.workers=1", "ps.shards=1", "model.mlp=8", "stream.linger_seconds=0.1")


def test_up_starts_a_broker_trains_from_it_and_stops_it_last(kafka: TestBroker, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = [part for setting in SMALL for part in ("--set", setting)]
    run = start("up", "--kafka", "--samples", "128", "--run", folder, "--json", tmp_path / "summary.json", *settings)
    wait_until(lambda: (folder / "endpoints" / "dispatcher").exists(), run)
    servers = json.loads((folder / "settings.json").read_text())["kafka"]["servers"]
    encoded = [encode_json(event) for event in events(128)]
    fill_topic(KafkaConfig(servers=servers), "clicks", {0: encoded[::2], 1: encoded[1::2]})
    told, _ = run.communicate(timeout=300)
    assert run.returncode == 0, told
    assert json.loads((tmp_path / "summary.json").read_text())["status"]["samples"] == 128
    assert sum(manifest.samples for manifest in read_manifests(folder / "journal")) == 128
    assert children_of(folder) == []
    assert "kafka-shutdown-hook" in (folder / "broker" / "broker.log").read_text()


def test_a_demo_goes_through_the_brokers_that_are_named(kafka: TestBroker, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = [part for setting in SMALL for part in ("--set", setting)]
    where = {**environment(), "FRESHET_KAFKA": ",".join(kafka.servers)}
    settings += ["--set", f"run={kafka.new_name()}"]
    command = freshet("demo", "--kafka", "--samples", "256", "--rate", "0", "--run", folder, *settings)
    ended = subprocess.run(command, cwd=ROOT, env=where, capture_output=True, text=True, timeout=350)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert sum(manifest.samples for manifest in read_manifests(folder / "journal")) == 256
    assert not (folder / "log").exists()
    assert not (folder / "broker").exists()

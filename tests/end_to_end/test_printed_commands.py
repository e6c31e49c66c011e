"""The command that a stopped run prints resumes it, whichever way it was started."""

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dispatch.journal.history import read_history
from infra.base.errors import MissingProgram
from infra.base.process import Stop
from infra.kafka.jars import find_java
from infra.run.settings import read_stored
from ingest.config import StreamConfig
from ingest.kafka.config import KafkaConfig
from ingest.main import ProducerJob, run_producer
from tests.end_to_end.processes import ROOT, WAIT_SECONDS, children_of, environment, wait_until

SMALL = {
    "FRESHET_STREAM__BATCH": "64",
    "FRESHET_DISPATCH__WORKERS": "1",
    "FRESHET_PS__SHARDS": "1",
    "FRESHET_MODEL__MLP": "8",
    "FRESHET_STREAM__LINGER_SECONDS": "0.1",
}
"""of the first start alone: a run that is resumed has its own"""
FIRST, ALL = 128, 256
"""samples before the stop, and in all"""
RESUMES = re.compile(r"stopped; '(freshet [^']*)' resumes it")


def begin(place: Path, command: str, **more: str) -> "subprocess.Popen[str]":
    """Starts exactly this command in a folder of the test."""
    name, *arguments = shlex.split(command)
    assert name == "freshet"
    return subprocess.Popen(
        [sys.executable, "-m", "infra.cli.entry", *arguments],
        cwd=place,
        env={**environment(), "PYTHONPATH": str(ROOT), **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(place: Path, command: str, status: int = 0, **more: str) -> str:
    """Runs exactly this command to its end; returns its output, with one space between two words."""
    process = begin(place, command, **more)
    told, _ = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == status, told
    return " ".join(told.split())


def samples_in(folder: Path) -> int:
    return read_history(folder / "journal").samples


def folder_in(place: Path, process: "subprocess.Popen[str]") -> Path:
    """The one folder of a run below runs/, once it is there."""
    wait_until(lambda: bool(list(place.glob("runs/*/journal"))), process)
    (journal,) = place.glob("runs/*/journal")
    return journal.parent


def interrupt(process: "subprocess.Popen[str]", folder: Path, samples: int) -> tuple[str, str]:
    """Stops a run with Ctrl-C once it has trained so many samples; (the command that it prints, all of its output)."""
    wait_until(lambda: samples_in(folder) >= samples, process)
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0, told
    (printed,) = RESUMES.findall(told)
    return str(printed), told


def write_events(stream: StreamConfig, kafka: KafkaConfig) -> None:
    """As many as are trained before the stop."""
    run_producer(ProducerJob(stream, kafka, limit=FIRST), Stop())


def test_a_demo_goes_on_with_the_printed_command(tmp_path: Path) -> None:
    process = begin(tmp_path, "freshet demo --samples 100000 --rate 2000 --no-serve", **SMALL)
    folder = folder_in(tmp_path, process)
    printed, _ = interrupt(process, folder, FIRST)
    assert printed == f"freshet demo --rate 2000 --no-serve --run {folder.relative_to(tmp_path)}"
    before = samples_in(folder)
    assert interrupt(begin(tmp_path, printed), folder, before + 1)[0] == printed, "and once more"
    assert before < samples_in(folder) < 100000


def test_up_with_a_settings_file_goes_on_without_it_and_says_where_it_begins_to_read(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('seed = 7\n[stream]\ntopic = "visits"\n')
    stream = StreamConfig(folder=tmp_path / "runs" / "log", topic="visits")
    write_events(stream, KafkaConfig())
    process = begin(tmp_path, f"freshet up --no-api --no-serve --samples {ALL} --config own.toml --run mine", **SMALL)
    folder = tmp_path / "runs" / "mine"
    printed, told = interrupt(process, folder, FIRST)
    assert printed == "freshet up --no-api --no-serve --run runs/mine"
    assert read_stored(folder).run == "mine"
    begins = (
        "reading begins with the oldest of them (with others: --from-time, --from-offsets, or another stream.topic)"
    )
    assert f"topic 'visits' in runs/log holds 128 records from before; {begins}" in told
    (tmp_path / "own.toml").unlink()
    write_events(stream, KafkaConfig())
    goes_on = "reading continues where the run was interrupted, with 128 of them to come"
    assert f"topic 'visits' in runs/log holds 256 records; {goes_on}" in run(tmp_path, printed)
    assert samples_in(folder) == ALL


@pytest.fixture
def java() -> None:
    try:
        find_java()
    except MissingProgram as error:
        pytest.skip(str(error))


def test_up_with_a_broker_of_its_own_is_verified_replayed_and_resumed(java: None, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = f"freshet up --no-api --no-serve --kafka --samples {ALL} --run ./run"
    write_to_broker(folder, process := begin(tmp_path, command, **SMALL), since=0)
    printed, _ = interrupt(process, folder, FIRST)
    assert printed == "freshet up --no-api --no-serve --run ./run"
    assert children_of(folder) == []

    run(tmp_path, "freshet verify --run ./run --json findings.json")
    found = findings(tmp_path)
    assert found["events add up"] is found["replay: predictions"] is found["replay: rows"] is True
    run(tmp_path, "freshet replay --run ./run --into replay")
    run(tmp_path, "freshet verify --run ./run --json findings.json", PATH="/without/java")
    assert findings(tmp_path)["events add up"] is findings(tmp_path)["replay"] is None, "that is no violation"
    refused = run(tmp_path, printed, status=2, FRESHET_KAFKA="127.0.0.1:1")
    assert "are on a broker of its own, and FRESHET_KAFKA names others" in refused

    since = (folder / "endpoints" / "dispatcher").stat().st_mtime
    again = begin(tmp_path, printed)
    write_to_broker(folder, again, since)
    told, _ = again.communicate(timeout=WAIT_SECONDS)
    assert again.returncode == 0, told
    assert samples_in(folder) == ALL


def write_to_broker(folder: Path, process: "subprocess.Popen[str]", since: float) -> None:
    """Writes events to the run's own broker, once a dispatcher of a later time reads from it."""
    endpoint = folder / "endpoints" / "dispatcher"
    wait_until(lambda: endpoint.exists() and endpoint.stat().st_mtime > since, process)
    stored = read_stored(folder)
    write_events(stored.stream, stored.kafka)


def findings(place: Path) -> dict[str, Any]:
    return {each["name"]: each["ok"] for each in json.loads((place / "findings.json").read_text())}

"""The commands around the stream, against a real broker; and that no secret comes out of any of them."""

import json
import signal
import subprocess
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from infra.base.errors import ConfigError
from infra.base.process import Stop
from infra.cli.main import app
from infra.cli.stream import progress_of
from ingest.config import StreamConfig
from ingest.kafka.letter_topic import KafkaLetters
from ingest.letters.letter import DeadLetter
from ingest.log.embedded import LogReader
from ingest.main import ProducerJob, run_producer
from tests.brokers import TestBroker
from tests.end_to_end.processes import ROOT, WAIT_SECONDS, environment, freshet, run, start

SECRET = "hunter2-and-more"


class Commands:
    """Commands on topics of their own."""

    def __init__(self, kafka: TestBroker) -> None:
        self.kafka, self.topic, self.letters = kafka, kafka.new_name(), kafka.new_name()
        names = {"stream.topic": self.topic, "stream.dead_letter_topic": self.letters}
        values = {**names, "kafka.servers": ",".join(kafka.servers), "kafka.group": kafka.new_name()}
        self._settings = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]

    def run(self, *arguments: str) -> str:
        done = CliRunner().invoke(app, [*arguments, *self._settings], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    def spawn(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = freshet(*arguments, *self._settings)
        return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=120)


@pytest.fixture
def commands(kafka: TestBroker) -> Commands:
    return Commands(kafka)


def test_topics_are_made_listed_and_described(commands: Commands) -> None:
    made = commands.run("topics", "create", "--partitions", "3", "--retention", "7d", "--retention-size", "1GiB")
    assert made.splitlines() == [f"{commands.topic}: created", f"{commands.letters}: created"]
    assert "exists already, as requested" in commands.run("topics", "create", "--partitions", "3", "--retention", "7d")
    assert commands.topic in commands.run("topics", "list")
    output = commands.run("topics", "describe")
    assert f"{commands.topic}: 3 partitions" in output
    assert "retention.ms 604800000, retention.bytes 1073741824" in output
    assert len(output.splitlines()) == 2 + 3


def test_events_are_produced_to_kafka_and_dead_letters_read_from_it(commands: Commands) -> None:
    commands.run("topics", "create")
    done = commands.spawn("produce", "--kafka", "--limit", "40", "--packed", "64")
    assert done.returncode == 0, done.stderr
    assert "40 events (0 bad on purpose) in 2 records" in done.stderr
    assert f"on Kafka at {commands.kafka.servers[0]}, all acknowledged" in done.stderr
    writer = KafkaLetters(commands.kafka.config(), commands.letters, commands.topic, f"test/{commands.topic}")
    writer.append([DeadLetter(1, 7, 0, "label: 2, expected 0 or 1", b"\xff!")])
    writer.close()
    (line,) = commands.run("dead-letters", "--kafka").splitlines()
    letter = json.loads(line)
    assert (letter["partition"], letter["offset"], letter["payload"]) == (1, 7, "\\xff!")


def test_a_missing_topic_is_one_line_and_status_1(commands: Commands) -> None:
    done = commands.spawn("produce", "--kafka", "--limit", "1", "--set", "telemetry.log_level=error")
    assert done.returncode == 1
    assert "is not on Kafka" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_a_topic_of_the_embedded_log_is_described(tmp_path: Path) -> None:
    stream = StreamConfig(folder=tmp_path / "log")
    run_producer(ProducerJob(stream, limit=100), Stop())
    log = ["--set", f"stream.folder={tmp_path / 'log'}", "--set", "stream.retention_bytes=65536"]
    done = CliRunner().invoke(app, ["topics", "describe", *log], catch_exceptions=False)
    first, columns, *rows = done.output.splitlines()
    assert first == f"clicks: 2 partitions in {tmp_path / 'log'}, keeps 65.5 kB a partition (stream.retention_bytes)"
    assert columns.split() == ["partition", "first", "end", "size"]
    assert sum(int(row.split()[2]) for row in rows) == 100
    assert all(row.split()[3:] == [*row.split()[3:4], "kB"] for row in rows)


@pytest.mark.parametrize("command", [("dead-letters",), ("topics", "describe")])
def test_a_folder_without_the_topic_is_an_error_and_not_an_empty_list(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "log" / "clocks").mkdir(parents=True)
    for folder, there in ((tmp_path / "lgo", "nothing was written there"), (tmp_path / "log", "it has clocks")):
        with pytest.raises(ConfigError, match=rf"in the embedded log {folder}: {there}; .*correct stream\.folder"):
            CliRunner().invoke(app, [*command, "--set", f"stream.folder={folder}"], catch_exceptions=False)


@pytest.mark.parametrize("given", ["7", "1.5d", "d", "7 weeks"])
def test_a_retention_without_a_unit_that_is_known_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read; expected a number with a unit"):
        CliRunner().invoke(app, ["topics", "create", "--retention", given], catch_exceptions=False)


class Timed(Stop):
    """Waits on a clock of its own, and no longer than that takes."""

    now = 0.0

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return self.requested


def test_a_duration_ends_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Timed()
    monkeypatch.setattr("ingest.producing.producer.time", SimpleNamespace(monotonic=lambda: stop.now))
    made = run_producer(ProducerJob(StreamConfig(folder=tmp_path), rate=50.0, duration_seconds=0.25), stop)
    assert (made.reason, made.seconds) == ("duration", 0.25)
    assert made.events == 15


def test_synthetic_events_are_dated_by_the_present(tmp_path: Path) -> None:
    before = time.time()
    done = run("produce", "--limit", "20", "--set", f"stream.folder={tmp_path}")
    assert done.returncode == 0, done.stderr
    with closing(LogReader(tmp_path, "clicks")) as log:
        records = [record for partition in log.partitions() for record in log.read(partition, 0)]
    times = [msgspec.json.decode(record.payload)["event_time"] for record in records]
    assert len(times) == 20
    assert before <= min(times) <= max(times) <= time.time()


def test_progress_is_shown_to_people_only(tmp_path: Path) -> None:
    for terminal in (True, False):
        console = Console(force_terminal=terminal, record=True, width=100)
        with progress_of(console, 100) as show:
            run_producer(ProducerJob(StreamConfig(folder=tmp_path), limit=100), Stop(), show)
        assert ("100/100" in console.export_text()) == terminal


def test_a_file_that_is_followed_is_told_of_in_a_few_short_lines(tmp_path: Path) -> None:
    clicks = tmp_path / "clicks.jsonl"
    clicks.write_bytes(b"{}\n" * 3000)
    follow = ("produce", clicks, "--dataset", "jsonl", "--follow", "--set", f"stream.folder={tmp_path / 'log'}")
    process, told = start(*follow), list[str]()
    assert process.stdout is not None
    while "waits for more lines" not in "".join(told):
        told.append(process.stdout.readline())
        assert told[-1], told
    process.send_signal(signal.SIGINT)
    told += process.communicate(timeout=WAIT_SECONDS)[0].splitlines()
    assert process.returncode == 0
    assert told[-1].endswith(f"ended by SIGINT; {clicks} is written up to byte 9000; continue with '--from-byte 9000'")
    assert sum(map(len, told)) < 1000, "no settings"


QUICK: tuple[tuple[str, ...], ...] = (("settings",), ("topics", "list"), ("produce", "--limit", "1"))


@pytest.mark.parametrize(
    ("command", "source"),
    [*((command, source) for command in QUICK for source in ("environment", "file")), (("up",), "environment")],
)
def test_a_password_is_in_no_output_and_no_file(tmp_path: Path, command: tuple[str, ...], source: str) -> None:
    (tmp_path / "password").write_text(f"{SECRET}\n")
    given = {
        "environment": {"FRESHET_KAFKA__PASSWORD": SECRET, "FRESHET_KAFKA__KEY_PASSWORD": SECRET},
        "file": {"FRESHET_KAFKA__PASSWORD_FILE": str(tmp_path / "password")},
    }[source]
    login = {"FRESHET_KAFKA__PROTOCOL": "SASL_PLAINTEXT", "FRESHET_KAFKA__USERNAME": "alice"}
    nobody = {"FRESHET_KAFKA__SERVERS": "127.0.0.1:1", "FRESHET_FOLDER": str(tmp_path / "run")}
    stream = {"FRESHET_STREAM__SOURCE": "kafka", "FRESHET_TELEMETRY__LOG_LEVEL": "debug"}
    env = {
        **environment(),
        **given,
        **login,
        **nobody,
        **stream,
        "FRESHET_PS__SHARDS": "1",
        "FRESHET_DISPATCH__WORKERS": "1",
    }
    done = subprocess.run(freshet(*command), cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert (done.returncode == 0) == (command == ("settings",)), done.stderr
    written = "".join(path.read_text() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert SECRET not in done.stdout + done.stderr + written
    assert "alice" in done.stdout + done.stderr + written or "127.0.0.1:1" in done.stderr

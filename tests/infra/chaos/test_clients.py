"""Clients of a run: what they do when they are refused, and what is made of what they were told."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from api.runs.requests import request_id
from infra.base.process import Stop
from infra.chaos.census import Usage
from infra.chaos.clients import (
    TOKEN_NAME,
    AnsweredRequests,
    ClientJob,
    Device,
    HardRequest,
    Kind,
    Reader,
    ReadSnapshot,
    SentRequest,
    Told,
    read_told,
)
from infra.chaos.promises import ClientRecords, check_accepted, check_errors, check_order, check_verdicts
from infra.chaos.usage import UsageLog, UsageSample, level_off
from infra.chaos.witness import TaggedRecords, Witness
from infra.cli.chaos import settings_of
from infra.cli.options import SettingsOptions
from infra.run.settings import load_settings, store_settings
from ingest.log.embedded import LogReader, LogWriter
from ps.checkpoints.manifest import CheckpointManifest, Verdict
from ps.protocol import FilePart

SNAPSHOT = b'{"probabilities": [], "snapshot": {"timeline": 0, "step": 9, "checkpoint": 3}}'


# ── asking ────────────────────────────────────────────────────────────────────────────────────────────────────────────
@dataclass
class Answering:
    """A server that gives out prepared answers, the last one for ever."""

    answers: list[tuple[int, bytes]]
    requests: list[tuple[str | None, bytes]] = field(default_factory=list)
    """key and body of each"""

    def answer(self, key: str | None, body: bytes) -> tuple[int, bytes]:
        self.requests.append((key, body))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def answering(folder: Path, *answers: tuple[int, bytes]) -> Iterator[Answering]:
    told = Answering(list(answers))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, answer = told.answer(self.headers["Idempotency-Key"], body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.send_header("Retry-After", "0")
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        (folder / "endpoints").mkdir()
        (folder / "endpoints" / "api").write_text(f"http://127.0.0.1:{server.server_port}\n")
        try:
            yield told
        finally:
            server.shutdown()


def job_in(folder: Path, kind: Kind) -> ClientJob:
    return ClientJob(kind=kind, folder=str(folder), run="r", seed=1, rate=1000.0, server="api", name=kind)


def test_a_device_repeats_a_request_that_was_refused_under_the_same_key(tmp_path: Path) -> None:
    with answering(tmp_path, (503, b"{}"), (200, b'{"accepted": 200}')) as server:
        device = Device(job_in(tmp_path, "device"), "secret", Stop())
        device.take_turn()
        device.finish()
    refused, accepted, again = server.requests
    assert refused == accepted == again
    hard, first, repeated, asked = read_told(tmp_path / "clients" / "device.jsonl")
    assert isinstance(hard, HardRequest)
    assert (hard.statuses, hard.lost, hard.most_errors) == ((503, 200), 0, 1)
    assert isinstance(first, SentRequest)
    assert isinstance(repeated, SentRequest)
    assert (first.accepted, first.repeated, repeated.accepted, repeated.repeated) == (200, False, 200, True)
    assert first.request == request_id(TOKEN_NAME, str(accepted[0]), accepted[1], 200).request.hex()
    assert asked == AnsweredRequests(2)


def test_a_reader_notes_which_snapshot_answers(tmp_path: Path) -> None:
    newer = SNAPSHOT.replace(b"9", b"12").replace(b"3", b"4")
    with answering(tmp_path, (503, b"{}"), (200, SNAPSHOT), (200, SNAPSHOT), (200, newer)):
        reader = Reader(job_in(tmp_path, "reader"), "secret", Stop())
        for _ in range(4):
            reader.take_turn()
        reader.finish()
    first, last, asked = read_told(tmp_path / "clients" / "reader.jsonl")
    assert isinstance(first, ReadSnapshot)
    assert isinstance(last, ReadSnapshot)
    assert [(each.step, each.checkpoint, each.answers) for each in (first, last)] == [(9, 3, 2), (12, 4, 1)]
    assert asked == AnsweredRequests(3), "what is asked before the first snapshot is no request"


# ── what was seen of the run ──────────────────────────────────────────────────────────────────────────────────────────
def witness_of(folder: Path, *parts: int) -> Witness:
    """One that has seen a log with these parts of a request of three records."""
    request = request_id(TOKEN_NAME, "k", b"", 3)
    writer = LogWriter(folder / "log", "clicks", 1)
    writer.write({0: [(request.tag(part), b"{}") for part in parts]})
    writer.close()
    witness, source = Witness(folder), LogReader(folder / "log", "clicks")
    witness.tagged.read(source)
    source.close()
    return witness


def records_of(*told: Told) -> ClientRecords:
    return ClientRecords({"client": list(told)})


@pytest.mark.parametrize(
    ("parts", "ok"), [((0, 1, 2), True), ((0, 2), False), ((0, 1, 2, 1), False), ((2, 1, 0, 0, 1, 2), False)]
)
def test_an_accepted_request_is_in_the_log_as_a_whole_and_once(
    tmp_path: Path, parts: tuple[int, ...], ok: bool
) -> None:
    request = request_id(TOKEN_NAME, "k", b"", 3).request.hex()
    sent = SentRequest(1.0, request, events=3, accepted=3)
    assert check_accepted(records_of(sent), witness_of(tmp_path, *parts)).ok is ok


def test_a_request_without_an_answer_may_be_in_the_log_or_not(tmp_path: Path) -> None:
    request = request_id(TOKEN_NAME, "k", b"", 3).request.hex()
    sent = SentRequest(1.0, request, events=3, accepted=0)
    found = check_accepted(records_of(sent), witness_of(tmp_path, 0, 1))
    assert (found.ok, "1 without an answer" in found.found) == (True, True)


def test_records_that_nobody_sent_are_a_violation(tmp_path: Path) -> None:
    sent = SentRequest(1.0, "00" * 16, events=3, accepted=0)
    assert check_accepted(records_of(sent), witness_of(tmp_path, 0)).ok is False


def test_what_retention_removed_before_it_was_read_is_not_checked(tmp_path: Path) -> None:
    witness = witness_of(tmp_path, 0, 1, 2)
    witness.tagged.unread = 1
    sent = SentRequest(1.0, "00" * 16, events=3, accepted=3)
    assert check_accepted(records_of(sent), witness).ok is None


def test_records_are_read_once_however_often_one_looks(tmp_path: Path) -> None:
    witness_of(tmp_path, 0, 1)
    tagged, source = TaggedRecords(), LogReader(tmp_path / "log", "clicks")
    for _ in range(2):
        tagged.read(source)
    source.close()
    assert (tagged.total, tagged.twice) == (2, 0)


# ── what clients are promised ─────────────────────────────────────────────────────────────────────────────────────────
def checkpoint(number: int, *reasons: str) -> CheckpointManifest:
    part = FilePart("file", 1, "00")
    return CheckpointManifest(
        run="r",
        number=number,
        step=10 * number,
        generation=1,
        at_seconds=1.0,
        shards=(),
        dispatcher=part,
        verdict=Verdict(reasons),
    )


def read(number: int) -> ReadSnapshot:
    return ReadSnapshot(1.0, 2.0, timeline=0, step=10 * number, checkpoint=number, answers=5)


def test_an_answer_of_a_snapshot_that_is_held_back_is_a_violation(tmp_path: Path) -> None:
    witness = Witness(tmp_path)
    witness.checkpoints = {1: checkpoint(1), 2: checkpoint(2, "logloss")}
    assert check_verdicts(records_of(read(1), read(2)), witness).ok is False
    found = check_verdicts(records_of(read(1), read(3)), witness)
    assert (found.ok, "1 not checked" in found.found) == (True, True)


@pytest.mark.parametrize(("processes", "snapshots", "ok"), [(1, (1, 2), True), (1, (2, 1), False), (2, (2, 1), None)])
def test_snapshots_only_go_forward_for_a_client(
    tmp_path: Path, processes: int, snapshots: tuple[int, ...], ok: bool | None
) -> None:
    store_settings(load_settings(None, [f"serving.processes={processes}", f"folder={tmp_path}"]))
    assert check_order(tmp_path, records_of(*map(read, snapshots))).ok is ok


@pytest.mark.parametrize(
    ("statuses", "ok"),
    [((503, 200), True), ((503, 503, 200), False), ((503, 429, 503, 200), True), ((500, 500), False), ((404,), False)],
)
def test_a_client_that_asks_twice_has_no_5xx(statuses: tuple[int, ...], ok: bool) -> None:
    assert check_errors(records_of(HardRequest(1.0, "/v1/predict", statuses, 0, 1.0))).ok is ok


# ── what a run uses ───────────────────────────────────────────────────────────────────────────────────────────────────
def test_the_first_quarter_is_compared_with_the_last_by_role() -> None:
    samples = [
        UsageSample(at, {"worker-0": Usage(at, 4), "worker-1": Usage(3 * at, 6)}, {"log": 10 * at})
        for at in range(1, 9)
    ]
    levels = level_off(samples)
    (memory,), (descriptors,), (folder,) = levels.memory, levels.descriptors, levels.folder
    assert (memory.name, memory.first, memory.last, memory.most) == ("worker", 3.0, 15.0, 24)
    assert (descriptors.first, descriptors.last) == (5.0, 5.0)
    assert (folder.name, folder.first, folder.last) == ("log", 15.0, 75.0)


def test_use_is_written_down_by_part_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "journal" / "deep").mkdir(parents=True)
    (tmp_path / "journal" / "deep" / "1.log").write_bytes(b"12345")
    (tmp_path / "settings.json").write_bytes(b"12")
    log = UsageLog(tmp_path)
    for _ in range(2):
        log.sample_if_due({})
    (sample,) = log.read()
    assert sample.folder_bytes == {"journal": 5, "files": 2}


# ── the command ───────────────────────────────────────────────────────────────────────────────────────────────────────
def test_the_url_of_a_database_is_not_on_a_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRESHET_API__DATABASE", "postgresql://ann:secret@host/runs")
    assert not any("secret" in part for part in settings_of(SettingsOptions(), tmp_path))

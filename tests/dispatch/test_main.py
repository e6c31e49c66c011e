"""The dispatcher's loop on real shards, with one worker that receives orders and never reports."""

import math
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any

import numpy as np
import pytest
import zmq
from msgspec import structs
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from dispatch.config import DispatchConfig
from dispatch.coordinator import Coordinator
from dispatch.errors import BadReport, CrewFailed, Recoverable
from dispatch.job import DispatchJob
from dispatch.journal.history import read_manifests
from dispatch.journal.log import JournalWriter
from dispatch.journal.records import AnyRecord, StepDecided
from dispatch.main import run_dispatcher
from dispatch.progress.status import Status
from dispatch.protocol import (
    FROM_DISPATCHER,
    TO_DISPATCHER,
    Admitted,
    Idle,
    Join,
    Order,
    OrderArrays,
    Ready,
    Report,
    ReportArrays,
    Welcome,
)
from dispatch.recovery import LONGEST_PAUSE_SECONDS
from dispatch.tally import NO_SECONDS
from infra.base.errors import StorageError
from infra.base.process import Stop
from infra.base.storage import Storage
from infra.base.telemetry import Meter
from infra.base.wire import Codec, connect, receive, send
from ingest.codec.json_events import encode_json
from ingest.config import StreamConfig
from ingest.errors import LogError, SinkUnavailable
from ingest.kafka.config import KafkaConfig
from ingest.letters.embedded import DeadLetterLog, read_dead_letters
from ingest.log.embedded import LogReader, LogWriter
from ingest.opening import open_letters
from ps.config import CheckpointConfig, RowConfig
from tests.ingest.topics import SYNTHETIC, events
from tests.ports import free_port
from tests.ps.doubles import RUN, SEED, running_shards

BATCH = 4
POLL_MILLISECONDS = 20
PATIENCE_SECONDS = 100.0


Answer = Callable[[Order, OrderArrays], tuple[Report, ReportArrays]]


def listen(
    endpoint: str,
    received: list[Any],
    stop: Stop,
    over: Event,
    done: Callable[[list[Any]], bool],
    answer: Answer | None = None,
) -> None:
    """A worker that joins, keeps the messages from Welcome on, and requests a stop when it has enough of them."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.set(zmq.ROUTING_ID, b"mute")
        socket.set(zmq.LINGER, 0)
        connect(socket, endpoint)
        send(socket, Codec(*TO_DISPATCHER), Join(run=RUN, generation=0, step=0, worker="mute"))
        until = monotonic() + PATIENCE_SECONDS
        while not (done(received) or over.is_set() or monotonic() > until):
            if socket.poll(POLL_MILLISECONDS):
                message, arrays = receive(socket, Codec(*FROM_DISPATCHER))
                if isinstance(message, Admitted):
                    send(socket, Codec(*TO_DISPATCHER), Ready(run=RUN, generation=0, step=0))
                if received or isinstance(message, Welcome):
                    received.append(message)
                if answer is not None and isinstance(message, Order):
                    send(socket, Codec(*TO_DISPATCHER), *answer(message, arrays))
        stop.request("test")


@contextmanager
def ending_at_a_fault() -> Iterator[None]:
    """Inside, a dispatcher that would recover from a fault raises it instead."""

    def end(_coordinator: Coordinator, fault: Recoverable) -> None:
        raise fault

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("dispatch.main.abort", end)
        yield


def dispatched(
    folder: Path,
    payloads: list[bytes],
    done: Callable[[list[Any]], bool],
    stop_at_end: bool = True,
    answer: Answer | None = None,
    **options: Any,
) -> tuple[list[Any], BaseException | None]:
    """What a worker that never reports receives, and the error the dispatcher ends with."""
    writer = LogWriter(folder / "log", "clicks", 1)
    writer.append(0, [(None, payload) for payload in payloads])
    writer.close()
    stop, over, received = Stop(), Event(), list[Any]()
    listener: list[Thread] = []

    def on_ready(endpoint: str, *_others: str) -> None:
        listener.append(Thread(target=listen, args=(endpoint, received, stop, over, done, answer)))
        listener[0].start()

    endpoint = f"tcp://127.0.0.1:{free_port()}"
    with running_shards(RowConfig(dim=2), dispatcher=endpoint, storage=str(folder / "checkpoints")):
        job = DispatchJob(
            run=RUN,
            seed=SEED,
            folder=folder,
            stream=StreamConfig(folder=folder / "log", batch=BATCH, linger_seconds=0),
            dispatch=DispatchConfig(policy="round_robin", workers=1, cache_rows=256, endpoint=endpoint, **options),
            schema=SYNTHETIC,
            rows=RowConfig(dim=2),
            shards=1,
            storage=str(folder / "checkpoints"),
            checkpoints=CheckpointConfig(seconds=0),
            stop_at_end=stop_at_end,
        )
        error: BaseException | None = None
        try:
            with ending_at_a_fault(), closing(open_letters(job.stream, KafkaConfig(), RUN)) as letters:
                source = LogReader(folder / "log", "clicks")
                run_dispatcher(job, source, letters, stop, on_ready, Meter(CollectorRegistry()))
        except (BadReport, CrewFailed, LogError, SinkUnavailable) as caught:
            error = caught
    over.set()
    listener[0].join()
    return received, error


def good(count: int) -> list[bytes]:
    return [encode_json(event) for event in events(count)]


@pytest.mark.parametrize("lookahead", [0, 2])
def test_so_many_steps_are_ordered_ahead_of_the_one_in_training(tmp_path: Path, lookahead: int) -> None:
    def told(received: list[Any]) -> list[type[Any]]:
        return [type(message) for message in received if not isinstance(message, Idle)]

    def done(received: list[Any]) -> bool:
        return len(told(received)) == 2 + lookahead

    received, _ = dispatched(tmp_path, good(40), done, lookahead=lookahead, report_seconds=1e6, drain_seconds=0.1)
    assert told(received) == [Welcome] + [Order] * (1 + lookahead)
    assert len(read_manifests(tmp_path / "journal")) == 1 + lookahead


def test_a_worker_that_does_not_report_is_named(tmp_path: Path) -> None:
    _, error = dispatched(tmp_path, good(40), lambda got: len(got) == 9, report_seconds=0.1)
    assert isinstance(error, CrewFailed)
    assert "no report from worker mute for 0.1 s" in str(error)


def trained(order: Order, work: OrderArrays) -> tuple[Report, ReportArrays]:
    """The report of a worker that did what it was ordered to, as far as a dispatcher can tell."""
    report = Report(
        run=RUN,
        generation=order.generation,
        step=order.step,
        phase=order.phase,
        worker=0,
        seconds=NO_SECONDS,
        pulled_bytes=8 * (work.full_rows.size + work.value_rows.size),
        pushed_bytes=8 * (work.owned_rows.size + work.part_rows.size),
    )
    return report, ReportArrays(logits=np.zeros(order.samples, np.float32))


@pytest.mark.parametrize(
    ("change", "logits", "expected"),
    [
        ({}, BATCH - 1, "worker mute reported step 1 .*logits is 3; expected 4;"),
        ({}, 1, "worker mute reported step 1 .*logits is 1; expected 4;"),
        ({"seconds": structs.replace(NO_SECONDS, pull=math.inf)}, BATCH, r"worker mute .*\$\.seconds\.pull"),
        ({"pulled_bytes": -1}, BATCH, r"worker mute .*\$\.pulled_bytes"),
        ({"step": 7}, BATCH, "worker mute reported step 7 .*not under way"),
        ({"worker": 1}, BATCH, "worker mute .*names worker number 1 of generation 1"),
    ],
)
def test_a_report_that_does_not_fit_stops_the_run_and_names_its_worker(
    tmp_path: Path, change: dict[str, Any], logits: int, expected: str
) -> None:
    def lie(order: Order, work: OrderArrays) -> tuple[Report, ReportArrays]:
        report, honest = trained(order, work)
        is_second = order.step == 1
        return (
            (structs.replace(report, **change), ReportArrays(honest.logits[:logits])) if is_second else (report, honest)
        )

    received, error = dispatched(tmp_path, good(40), lambda got: len(got) == 99, answer=lie, report_seconds=20)
    assert isinstance(error, BadReport)
    assert re.search(expected, str(error))
    assert any(isinstance(message, Order) and message.step == 1 for message in received)


def test_a_worker_that_does_not_report_holds_up_a_stop_no_longer_than_draining_may_take(tmp_path: Path) -> None:
    _, error = dispatched(tmp_path, good(40), lambda got: len(got) == 3, report_seconds=1e6, drain_seconds=0.1)
    assert isinstance(error, CrewFailed)
    assert "for 0.1 s" in str(error)


def test_workers_are_kept_alive_while_there_are_no_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.coordinator.KEEP_ALIVE_SECONDS", 0.0)
    received, _ = dispatched(tmp_path, [], lambda got: len(got) == 2, stop_at_end=False, drain_seconds=0.1)
    assert [type(message) for message in received] == [Welcome, Idle]


def test_a_step_is_on_record_before_its_dead_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise LogError("the disk is full")

    monkeypatch.setattr(DeadLetterLog, "append", fail)
    _, error = dispatched(tmp_path, [b"bad"], lambda _: False)
    assert isinstance(error, LogError)
    assert [(m.samples, m.rejected) for m in read_manifests(tmp_path / "journal")] == [(0, 1)]


def test_a_step_that_cannot_be_written_down_is_not_ordered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def append_once(journal: JournalWriter, *records: AnyRecord) -> None:
        if any(isinstance(record, StepDecided) and record.step > 1 for record in records):
            assert is_ordered.wait(PATIENCE_SECONDS), "the first step is not ordered"
            raise LogError("the disk is full")
        append(journal, *records)

    def done(received: list[Any]) -> bool:
        if any(isinstance(message, Order) for message in received):
            is_ordered.set()
        return False

    append, is_ordered = JournalWriter.append, Event()
    monkeypatch.setattr(JournalWriter, "append", append_once)
    received, error = dispatched(tmp_path, good(40), done, report_seconds=1e6, drain_seconds=0.1)
    assert isinstance(error, LogError)
    assert [type(message) for message in received if isinstance(message, Order)] == [Order]
    assert [manifest.step for manifest in read_manifests(tmp_path / "journal")] == [1]


def test_workers_are_kept_alive_while_dead_letters_wait_for_their_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, tries, are_kept_alive = DeadLetterLog.append, list[int](), Event()

    def wait(log: DeadLetterLog, letters: Any) -> int:
        tries.append(len(letters))
        if len(tries) < 4:
            raise SinkUnavailable("the broker is away")
        assert are_kept_alive.wait(PATIENCE_SECONDS), "workers hear nothing meanwhile"
        return append(log, letters)

    def done(received: list[Any]) -> bool:
        if sum(isinstance(message, Idle) for message in received) >= 3:
            are_kept_alive.set()
        return False

    monkeypatch.setattr("dispatch.coordinator.KEEP_ALIVE_SECONDS", 0.0)
    monkeypatch.setattr(DeadLetterLog, "append", wait)
    dispatched(tmp_path, [b"bad", b"worse"], done, report_seconds=0.1)
    assert tries == [2] * 4
    assert are_kept_alive.is_set()
    assert len(list(read_dead_letters(tmp_path / "log"))) == 2


def test_a_stop_does_not_wait_for_the_broker_of_dead_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(*_: object) -> int:
        raise SinkUnavailable("the broker is away")

    monkeypatch.setattr("dispatch.coordinator.KEEP_ALIVE_SECONDS", 0.0)
    monkeypatch.setattr(DeadLetterLog, "append", wait)
    _, error = dispatched(tmp_path, [b"bad"], lambda got: len(got) > 2)
    assert isinstance(error, SinkUnavailable)
    assert [(m.samples, m.rejected) for m in read_manifests(tmp_path / "journal")] == [(0, 1)]


def test_bad_events_without_a_good_one_are_dead_lettered(tmp_path: Path) -> None:
    dispatched(tmp_path, [b"bad", b"worse"], lambda _: False, report_seconds=0.1)
    log = DeadLetterLog(tmp_path / "log")
    log.close()
    reader = LogReader(tmp_path / "log", "dead-letters")
    assert reader.span(0) == (0, 2)
    reader.close()


class HiddenCheckpoints:
    """Storage that fails to list its checkpoints so many times; asks a dispatcher to stop after so many tries."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int, stop: Stop | None = None) -> None:
        self.tries, listing = 0, Storage.names

        def names(storage: Storage) -> list[str]:
            self.tries += 1
            if self.tries > times:
                return listing(storage)
            if self.tries == times and stop is not None:
                stop.request("test")
            raise StorageError("cannot list the checkpoints: Input/output error")

        monkeypatch.setattr(Storage, "names", names)


@pytest.fixture
def quick_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses that were to be made, none of which is."""
    made = list[float]()

    def wait(stop: Stop, seconds: float) -> bool:
        made.append(seconds)
        return stop.requested

    monkeypatch.setattr(Stop, "wait", wait)
    return made


def start_dispatcher(folder: Path, stop: Stop) -> tuple[Status, list[str]]:
    """One with no shard and no worker; its last status, and what it logged of faults."""
    LogWriter(folder / "log", "clicks", 1).close()
    stream = StreamConfig(folder=folder / "log", batch=BATCH, linger_seconds=0)
    job = DispatchJob(RUN, SEED, folder, stream, DispatchConfig(workers=1), SYNTHETIC, RowConfig(dim=2), shards=1)
    job = replace(job, storage=str(folder / "checkpoints"))
    source = LogReader(folder / "log", "clicks")
    with capture_logs() as logs, closing(source), closing(open_letters(stream, KafkaConfig(), RUN)) as letters:
        status = run_dispatcher(job, source, letters, stop, lambda *_: None, Meter(CollectorRegistry()))
    return status, [line["fault"] for line in logs if "fault" in line]


def test_storage_that_does_not_list_the_checkpoints_is_asked_again_with_pauses_that_double(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick_pauses: list[float]
) -> None:
    stop = Stop()
    hidden = HiddenCheckpoints(monkeypatch, times=6)
    monkeypatch.setattr("dispatch.recovery.assemble", lambda *_: stop.request("test"))
    _, faults = start_dispatcher(tmp_path, stop)
    assert hidden.tries > 6
    assert quick_pauses[:6] == [0.5, 1.0, 2.0, 4.0, 8.0, LONGEST_PAUSE_SECONDS]
    assert len(faults) == 6
    assert all("which checkpoints there are cannot be read" in fault and "Input/output" in fault for fault in faults)


def test_a_stop_is_taken_while_storage_does_not_list_the_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick_pauses: list[float]
) -> None:
    stop = Stop()
    hidden = HiddenCheckpoints(monkeypatch, times=3, stop=stop)
    status, faults = start_dispatcher(tmp_path, stop)
    assert (hidden.tries, len(faults), len(quick_pauses)) == (3, 3, 3)
    assert "which checkpoints there are cannot be read" in " ".join(status.troubles)

"""The worker process against a dispatcher that follows a script; shards are real."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
from prometheus_client import CollectorRegistry
from safetensors.numpy import load_file
from structlog.testing import capture_logs

from dispatch.protocol import (
    FROM_DISPATCHER,
    TO_DISPATCHER,
    Abort,
    Admitted,
    GaveUp,
    Goodbye,
    Idle,
    Join,
    Leave,
    Order,
    OrderArrays,
    Post,
    Posted,
    Ready,
    Report,
    Saved,
    Welcome,
)
from infra.base.agreement import Agreement
from infra.base.errors import ConfigError, FileUnusable
from infra.base.link import Link
from infra.base.process import Stop
from infra.base.telemetry import Meter
from infra.base.wire import NO_ARRAYS, Arrays, Codec, Header, Refused, bind, send
from ps.config import RowConfig
from ps.phases import FLUSH, TRAIN
from ps.protocol import DISPLACED, TAKEN
from tests.ps.doubles import RUN, SEED, Announcer, stage
from tests.sockets import receive_from
from trainer.config import DENSE_FILE, ModelConfig, TrainerConfig
from trainer.dispatcher import Dispatcher
from trainer.errors import DispatcherLost, Rejected, Removed
from trainer.job import WorkerJob
from trainer.main import host_of, run_worker

ROWS, MODEL = RowConfig(dim=2), ModelConfig(mlp=(4,))
PATIENCE_MILLISECONDS = 60_000
NAME = "worker-0"
AGREEMENT = Agreement(workers={"model.dense_rate": "0.003"})


class ScriptedDispatcher:
    """The dispatcher's socket, driven by hand."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", announcer: Announcer, shards: tuple[str, ...]
    ) -> None:
        self.shards = shards
        self._socket = context.socket(zmq.ROUTER)
        self.endpoint = bind(self._socket, "tcp://127.0.0.1:*")
        self._announcer = announcer
        self._sends, self._receives = Codec(*FROM_DISPATCHER), Codec(*TO_DISPATCHER)
        self.generation = 1
        self._worker, self._has_joined = b"", False

    def hear(self) -> Any:
        """The next message; an offer that the worker repeats because it hears nothing is passed over."""
        while True:
            assert self._socket.poll(PATIENCE_MILLISECONDS), "the worker says nothing"
            self._worker, header, _ = receive_from(self._socket, self._receives)
            assert self._worker.startswith(NAME.encode())
            if not (isinstance(header, Join) and self._has_joined):
                self._has_joined = self._has_joined or isinstance(header, Join)
                return header

    def forget(self) -> None:
        """The next offer of the worker is heard like the first."""
        self._has_joined = False

    def has_word(self) -> bool:
        """Whether the worker has sent something that was not heard yet."""
        return bool(self._socket.poll(100))

    def say(self, kind: type[Header], arrays: Arrays = NO_ARRAYS, **fields: Any) -> None:
        common: dict[str, Any] = {"run": RUN, "generation": self.generation, "step": 0}
        send(self._socket, self._sends, kind(**common | fields), arrays, to=self._worker)

    def welcome(self, names: tuple[str, ...] = (NAME,)) -> None:
        joined = self.hear()
        assert isinstance(joined, Join)
        assert (joined.link_gbit, joined.settings) == (0.5, AGREEMENT.workers)
        self.say(Admitted)
        assert isinstance(self.hear(), Ready)
        self.say(Welcome, worker=0, names=names, cache_rows=8, shards=self.shards)

    def next_generation(self) -> None:
        self.generation += 1
        self._announcer.open(self.generation, workers=1)
        self.say(Welcome, worker=0, names=(NAME,), cache_rows=8, shards=self.shards)

    def train(self, step: int) -> None:
        """Announces and orders a step of 3 samples with one key each: rows 0 to 2, new in step 0 and cached then."""
        new = {row: 100 + row for row in range(3)} if step == 0 else {}
        self._announcer.announce(step, new=new, generation=self.generation)
        self.order(step, self.generation)

    def order(self, step: int, generation: int) -> None:
        slots = np.arange(3, dtype=np.int32)
        arrays = OrderArrays(used_slots=slots, positions=slots, labels=np.ones(3, np.float32))
        if step == 0:
            arrays = arrays._replace(full_rows=np.arange(3), full_slots=slots)
        sizes = {"samples": 3, "batch": 3, "alone": 3, "generation": generation}
        self.say(Order, arrays, step=step, phase=TRAIN, **sizes)

    def flush(self, step: int) -> None:
        """All rows and the dense weights."""
        pushes = {0: (range(3), range(0))}
        self._announcer.announce(step, FLUSH, pushes, generation=self.generation, dense_whole=[0])
        arrays = OrderArrays(owned_rows=np.arange(3), owned_slots=np.arange(3, dtype=np.int32))
        self.say(Order, arrays, step=step, phase=FLUSH, samples=0, batch=0, alone=0, gives_dense=True)

    def close(self) -> None:
        self._socket.close(linger=0)


@contextmanager
def working(
    folder: Path, stop: Stop, silence_seconds: float = 60, reduce_timeout_seconds: float = 60
) -> Iterator[tuple[ScriptedDispatcher, Future[None]]]:
    """A worker in a thread that has sent, or is about to send, its Join."""
    with stage(ROWS, workers=1) as staged, ThreadPoolExecutor(1) as pool:
        dispatcher = ScriptedDispatcher(staged.context, staged.announcer, tuple(staged.endpoints))
        ready, registry = threading.Event(), CollectorRegistry()
        job = WorkerJob(
            name=NAME,
            run=RUN,
            seed=SEED,
            folder=folder,
            dispatcher_endpoint=dispatcher.endpoint,
            rows=ROWS,
            model=MODEL,
            trainer=TrainerConfig(
                device="cpu", silence_seconds=silence_seconds, reduce_timeout_seconds=reduce_timeout_seconds
            ),
            fields=1,
            dense=0,
            link=Link(0.5),
            agreement=AGREEMENT,
        )
        ended = pool.submit(run_worker, job, stop, ready.set, Meter(registry))
        try:
            assert ready.wait(60) or ended.exception() is not None
            yield dispatcher, ended
        finally:
            wait([ended], timeout=60)
            dispatcher.close()


def test_worker_trains_flushes_and_writes_its_weights(tmp_path: Path) -> None:
    with working(tmp_path, Stop()) as (dispatcher, ended):
        dispatcher.welcome()
        dispatcher.train(0)
        assert isinstance(dispatcher.hear(), Report)
        dispatcher.flush(0)
        flushed = dispatcher.hear()
        dispatcher.say(Goodbye, save_dense=True)
        saved = dispatcher.hear()
        weights = load_file(tmp_path / DENSE_FILE)
        assert ended.result(60) is None
    assert (flushed.phase, flushed.pushed_bytes > 0) == (FLUSH, True)
    assert isinstance(saved, Saved)
    assert weights["step"] == 1


def test_every_connection_of_a_worker_goes_over_its_link_which_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected, connect = list[str](), Link.connect

    def note(link: Link, context: Any, endpoint: str, *options: Any) -> Any:
        connected.append(endpoint)
        return connect(link, context, endpoint, *options)

    monkeypatch.setattr(Link, "connect", note)
    with working(tmp_path, Stop()) as (dispatcher, ended):
        assert connected == [dispatcher.endpoint]
        dispatcher.welcome()
        dispatcher.say(Goodbye, save_dense=False)
        assert ended.result(60) is None
        assert connected == [dispatcher.endpoint, *dispatcher.shards]
    assert not [thread for thread in threading.enumerate() if thread.name == "link"]


def test_weights_that_cannot_be_saved_are_not_confirmed(tmp_path: Path) -> None:
    with working(tmp_path / "no folder", Stop()) as (dispatcher, ended):
        dispatcher.welcome()
        dispatcher.train(0)
        dispatcher.flush(0)
        assert [dispatcher.hear().phase for _ in range(2)] == [TRAIN, FLUSH]
        dispatcher.say(Goodbye, save_dense=True)
        with pytest.raises(FileUnusable):
            ended.result(60)
        assert not dispatcher.has_word()


def test_goodbye_alone_writes_nothing(tmp_path: Path) -> None:
    with working(tmp_path, Stop()) as (dispatcher, ended):
        dispatcher.welcome()
        dispatcher.say(Goodbye, save_dense=False)
        assert ended.result(60) is None
    assert list(tmp_path.iterdir()) == []


def test_stop_asks_to_leave_once_and_goes_on_until_goodbye(tmp_path: Path) -> None:
    stop = Stop()
    with working(tmp_path, stop) as (dispatcher, ended):
        dispatcher.welcome()
        dispatcher.train(0)
        assert isinstance(dispatcher.hear(), Report)
        stop.request("SIGTERM")
        assert isinstance(dispatcher.hear(), Leave)
        for step in (1, 2):
            dispatcher.train(step)
            assert isinstance(dispatcher.hear(), Report)
        dispatcher.say(Goodbye, save_dense=False)
        assert ended.result(60) is None


def test_worker_nobody_welcomed_leaves_by_itself(tmp_path: Path) -> None:
    stop = Stop()
    with working(tmp_path, stop) as (dispatcher, ended):
        assert isinstance(dispatcher.hear(), Join)
        stop.request("SIGTERM")
        assert isinstance(dispatcher.hear(), Leave)
        assert ended.result(60) is None


def test_order_of_an_ended_generation_is_passed_over(tmp_path: Path) -> None:
    with working(tmp_path, Stop()) as (dispatcher, ended):
        dispatcher.welcome()
        dispatcher.order(0, generation=0)
        dispatcher.train(1)
        assert dispatcher.hear().step == 1
        dispatcher.say(Goodbye, save_dense=False)
        assert ended.result(60) is None


def test_second_welcome_starts_the_next_generation(tmp_path: Path) -> None:
    with working(tmp_path, Stop()) as (dispatcher, ended):
        dispatcher.welcome()
        dispatcher.train(0)
        dispatcher.hear()
        dispatcher.next_generation()
        dispatcher.train(1)
        assert dispatcher.hear().generation == 2
        dispatcher.flush(1)
        assert dispatcher.hear().phase == FLUSH
        dispatcher.say(Goodbye, save_dense=True)
        assert ended.result(60) is None
    assert load_file(tmp_path / DENSE_FILE)["step"] == 2


def test_silent_dispatcher_ends_the_worker(tmp_path: Path) -> None:
    with working(tmp_path, Stop(), silence_seconds=0.2) as (_, ended), pytest.raises(DispatcherLost, match="no word"):
        ended.result(60)


def test_a_worker_whose_peer_does_not_come_says_so_and_waits_for_the_next_generation(tmp_path: Path) -> None:
    with (
        capture_logs() as logs,
        working(tmp_path, Stop(), reduce_timeout_seconds=0.2) as (dispatcher, ended),
    ):
        dispatcher.welcome((NAME, "absent"))
        assert isinstance(dispatcher.hear(), Post)
        assert dispatcher.hear() == GaveUp(run=RUN, generation=1, step=0, worker=0)
        dispatcher.next_generation()
        dispatcher.train(0)
        assert dispatcher.hear().generation == 2
        dispatcher.say(Goodbye, save_dense=False)
        assert ended.result(60) is None
    (told,) = [line for line in logs if line["event"] == "waited in vain"]
    assert "worker absent posted no" in told["reason"]


def test_an_abort_ends_an_order_that_waits_and_is_confirmed(tmp_path: Path) -> None:
    with working(tmp_path, Stop()) as (dispatcher, ended):
        dispatcher.welcome()
        dispatcher.order(0, generation=1)  # not announced: the shard does not answer
        assert not dispatcher.has_word()
        dispatcher.say(Abort)
        assert isinstance(dispatcher.hear(), Ready)
        dispatcher.next_generation()
        dispatcher.train(0)
        assert dispatcher.hear().generation == 2
        dispatcher.say(Goodbye, save_dense=False)
        assert ended.result(60) is None


def test_a_worker_that_a_newer_one_displaced_ends_and_may_be_started_again(tmp_path: Path) -> None:
    with working(tmp_path, Stop()) as (dispatcher, ended):
        dispatcher.welcome()
        dispatcher.say(
            Refused, generation=-1, current=1, what=DISPLACED, reason=f"a newer worker named {NAME!r} has joined"
        )
        with pytest.raises(Rejected, match="a newer worker named") as caught:
            ended.result(60)
        assert not isinstance(caught.value, ConfigError)


def test_a_worker_whose_name_is_taken_offers_itself_again(tmp_path: Path) -> None:
    with working(tmp_path, Stop()) as (dispatcher, ended):
        assert isinstance(dispatcher.hear(), Join)
        dispatcher.say(Refused, generation=-1, current=1, what=TAKEN, reason="another process is worker-0")
        dispatcher.forget()  # a second offer is no repetition
        dispatcher.welcome()
        dispatcher.say(Goodbye, save_dense=False)
        assert ended.result(60) is None


@pytest.mark.parametrize("others", [(), ("absent",)])
def test_a_worker_that_is_removed_ends_whatever_it_waits_for(tmp_path: Path, others: tuple[str, ...]) -> None:
    with working(tmp_path, Stop()) as (dispatcher, ended):
        dispatcher.welcome((NAME, *others))
        if others:
            assert isinstance(dispatcher.hear(), Post)  # it waits for the other's
        else:
            dispatcher.order(0, generation=1)  # not announced: the shard does not answer
        assert not dispatcher.has_word()
        dispatcher.say(Refused, generation=-1, current=1, what="removed", reason="it was removed")
        with pytest.raises(Removed, match="it was removed"):
            ended.result(20)


def test_refusal_ends_the_worker_with_its_reason(tmp_path: Path) -> None:
    with working(tmp_path, Stop()) as (dispatcher, ended):
        dispatcher.hear()
        dispatcher.say(Refused, reason="wrong schema")
        with pytest.raises(Rejected, match="wrong schema"):
            ended.result(60)


class Script:
    """A socket on which messages arrive one after the other; where it says None nothing comes for a minute."""

    def __init__(self, *messages: Header | None) -> None:
        self._messages = list(messages)
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def poll(self, milliseconds: int) -> bool:
        if self._messages and self._messages[0] is not None:
            return True
        if self._messages and milliseconds:
            self._messages.pop(0)
            self.now += 60.0
        return False

    def recv_multipart(self, copy: bool) -> Any:
        message = self._messages.pop(0)
        assert message is not None
        return Codec(*FROM_DISPATCHER).encode(message)

    def close(self) -> None:
        """Nothing to close."""


@contextmanager
def speaking(script: Script, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dispatcher]:
    """A worker's connection over which these messages come."""
    monkeypatch.setattr("trainer.dispatcher.time", script)
    with zmq.Context() as context:
        dispatcher = Dispatcher(context, "tcp://127.0.0.1:1", NAME, RUN, b"test")
        dispatcher._socket.close(linger=0)
        dispatcher._socket = script  # type: ignore[assignment]
        yield dispatcher


def heard_from(script: Script, monkeypatch: pytest.MonkeyPatch, silence_seconds: float = 100) -> list[Header]:
    """What a worker takes from these messages."""
    with speaking(script, monkeypatch) as dispatcher:
        return [message for message, _ in dispatcher.messages(Stop(), silence_seconds)]


def test_a_post_that_came_together_with_the_welcome_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def post(key: str, generation: int = 1) -> Posted:
        return Posted(run=RUN, generation=generation, step=0, key=key, value=b"here")

    script = Script(welcome(), post("old", generation=0), post("a"), IDLE, post("b"), GOODBYE)
    with speaking(script, monkeypatch) as dispatcher:
        messages = dispatcher.messages(Stop(), 100)
        assert next(messages)[0] == welcome()
        assert [dispatcher.next_post(1.0) for _ in range(2)] == [("a", b"here"), ("b", b"here")]
        assert [message for message, _ in messages] == [IDLE, GOODBYE]


def welcome(run: str = RUN, generation: int = 1) -> Welcome:
    return Welcome(run=run, generation=generation, step=0, worker=0, names=(NAME,), cache_rows=8)


IDLE = Idle(run=RUN, generation=1, step=0)
GOODBYE = Goodbye(run=RUN, generation=1, step=0, save_dense=False)


def test_idle_dispatcher_is_not_taken_for_a_silent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(welcome(), None, IDLE, None, IDLE, None, GOODBYE)
    assert heard_from(script, monkeypatch) == [welcome(), IDLE, IDLE, GOODBYE]


def test_silence_is_counted_from_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DispatcherLost, match=r"no word from the dispatcher at .* in 120 s"):
        heard_from(Script(welcome(), None, IDLE, None, None), monkeypatch)


def test_generation_that_did_not_welcome_the_worker_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(welcome(), Idle(run=RUN, generation=2, step=0), GOODBYE)
    assert heard_from(script, monkeypatch) == [welcome(), GOODBYE]


def test_message_of_another_run_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(welcome(), welcome(run="other", generation=2), IDLE, GOODBYE)
    assert heard_from(script, monkeypatch) == [welcome(), IDLE, GOODBYE]


@pytest.mark.parametrize(
    ("endpoint", "host"), [("tcp://10.0.0.7:5555", "10.0.0.7"), ("tcp://[::1]:5", "::1"), ("ipc:///x", "127.0.0.1")]
)
def test_host_of_an_endpoint(endpoint: str, host: str) -> None:
    assert host_of(endpoint) == host

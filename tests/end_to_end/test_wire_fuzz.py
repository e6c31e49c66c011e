"""Every malformed message there is, sent to shards and dispatcher in the middle of a run: the run does not notice."""

import random
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from prometheus_client import CollectorRegistry

from dispatch.protocol import FROM_DISPATCHER, TO_DISPATCHER, GaveUp, Join, Post, Report
from infra.base.wire import Codec, Header, Refused, connect, receive
from ingest.log.embedded import LogReader, LogWriter
from ingest.streams.sink import Entry
from ps.config import RowConfig
from ps.phases import EARLY, FLUSH, TRAIN
from ps.protocol import (
    BARE,
    EMPTY_MODEL,
    FROM_SHARD,
    GO_ON,
    TO_SHARD,
    WHOLE,
    Announce,
    CheckpointCommitted,
    Open,
    Peek,
    PeekArrays,
    Pull,
    PullDense,
    Push,
    PushDense,
    Serve,
)
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.threads import ROWS, RUN, Plan, Result, Threads, train, wait_for_steps
from tests.malformed import Message, spoiled_messages, valid_message
from tests.ps.doubles import PATIENCE_MILLISECONDS, ints, stage

BATCH = 64
STEPS = 6
LATER = 1_000_000
"""a step that no run here gets to"""
NO_ROW = [1 << 40, -1]
"""row numbers that were never given out"""
SHAPE = ROWS.shape()


def numbers(*values: int) -> bytes:
    return ints(*values).tobytes()


def placed(kind: type[Header], arrays: dict[str, bytes] | None = None, how: str = "", **fields: Any) -> Message:
    """A message that can be read, with its place and its rows as a test wants them; arrays not given are empty."""
    at: dict[str, Any] = {"run": RUN, "generation": 1, "step": 0}
    message = valid_message(kind, **at | fields)
    names = kind.ARRAYS._fields  # type: ignore[attr-defined]
    if arrays is not None:
        assert set(arrays) <= set(names)
        message = replace(message, arrays=[arrays.get(name, b"") for name in names])
    return replace(message, how=how or str(fields))


def pushed(row: int, step: int, worker: int = 0, generation: int = 1, rows: int = 1) -> Message:
    """A push of a row that is owned, in the right shape."""
    floats = np.zeros(rows * SHAPE.total, np.float32).tobytes()
    arrays = {"owned_numbers": numbers(*[row] * rows), "owned_rows": floats}
    return placed(Push, arrays, phase=TRAIN, step=step, worker=worker, generation=generation)


def misplaced_at_shard(step: int) -> Iterator[Message]:
    """Messages that can be read and have no place in the run, or none yet: they name rounds up to the given one."""
    for kind in TO_SHARD:
        if kind not in (Push, PushDense):
            yield placed(kind, run="another")
            yield placed(kind, generation=0)
    yield placed(Announce, generation=7)
    for restore in (GO_ON, EMPTY_MODEL, 1):
        yield placed(Open, workers=2, restore=restore, how="who sends it")
    yield placed(CheckpointCommitted, checkpoint=1, how="who sends it")
    yield placed(CheckpointCommitted, generation=7)
    yield placed(Announce, {}, step=LATER, phase=FLUSH, checkpoint=1, how="who sends it")
    yield placed(Announce, {}, step=LATER, how="who sends it")
    yield placed(Announce, {})
    for pushers, fingerprints in (([5], 1), ([0, 0], 2), ([0], 2)):
        yield placed(Announce, {"pushed": bytes(8 * fingerprints)}, step=LATER, pushers=pushers)
    wrong: list[dict[str, Any]] = [{"dense_gradients": [5]}, {"dense_gradients": [0, 0]}, {"dense_whole": [0, 1]}]
    for named in (*wrong, {"dense_gradients": [0], "phase": EARLY}, {"dense_whole": [0], "phase": EARLY}):
        yield placed(Announce, {}, **{"step": LATER, "phase": TRAIN} | named)
    for form in (BARE, WHOLE):
        yield placed(PushDense, {"floats": bytes(12)}, phase=TRAIN, worker=0, form=form)
        yield placed(PushDense, {"floats": bytes(12)}, phase=TRAIN, step=step, worker=5, form=form)
        yield placed(PullDense, worker=5, form=form)
        yield placed(PullDense, worker=0, form=form)
    for row in NO_ROW:
        yield placed(Announce, {"new_numbers": numbers(row), "new_keys": bytes(8)}, step=LATER, how=f"new {row}")
        yield placed(Announce, {"settled": numbers(row)}, step=LATER, how=f"settled {row}")
        changed = {"changed": numbers(row), "changed_steps": bytes(8)}
        yield placed(Announce, changed, step=LATER, how=f"changed {row}")
        yield placed(Pull, {"full_numbers": numbers(row)}, worker=0)
        yield placed(Peek, {"numbers": numbers(row)})
        yield pushed(row, step)
    yield placed(Pull, {"value_numbers": numbers(*[0] * 100_000)}, worker=1, how="one row 100,000 times")
    yield placed(Peek, {"numbers": numbers(*[0] * 100_000)}, how="one row 100,000 times")
    yield placed(Pull, {}, worker=5)
    yield pushed(0, step, worker=5)
    yield pushed(0, step, generation=7)
    few = {"owned_numbers": numbers(0), "owned_rows": bytes(12)}
    yield placed(Push, few, phase=TRAIN, step=step, worker=0, how="too few floats")
    for number in range(step + 1):
        yield pushed(0, number, worker=number % 2, rows=2)
        gradient = {"floats": bytes(12)}
        yield placed(PushDense, gradient, phase=TRAIN, step=number, worker=number % 2, form=BARE)


def misplaced_at_dispatcher() -> Iterator[Message]:
    for kind in TO_DISPATCHER:
        yield placed(kind, run="another")
    yield placed(Join, worker="worker-0")
    for shard, shards in ((0, 0), (0, 2), (1, 2), (7, 9)):
        yield placed(Serve, terms={"shard": shard, "shards": shards, "settings": {}})
    for worker in (0, 1, 2):
        for generation in (0, 1, 2):
            for kind in (Report, Post, GaveUp):
                yield placed(kind, worker=worker, generation=generation, step=1)


def spoiled(kinds: tuple[type[Header], ...], rounds: int, seed: int) -> Iterator[Message]:
    rng = random.Random(seed)
    for _ in range(rounds):
        for kind in kinds:
            yield from spoiled_messages(placed(kind), rng)


class Stranger:
    """A socket that belongs to no worker; counts what it sends and the refusals it gets."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, *answers: type[Header]) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._socket.set(zmq.LINGER, 0)
        self._socket.set(zmq.RCVHWM, 0)
        connect(self._socket, endpoint)
        self._codec = Codec(*answers)
        self.sent = 0
        self.refused = 0

    def send(self, messages: list[Message]) -> None:
        for message in messages:
            self._socket.send_multipart(message.frames)
        self.sent += len(messages)

    def hear(self, still_waiting: int = 0) -> None:
        """Takes refusals until all but so many messages are answered; anything else that comes is an error."""
        while self.refused < self.sent - still_waiting:
            assert self._socket.poll(PATIENCE_MILLISECONDS), f"{self.refused} refusals of {self.sent} messages"
            answer, _ = receive(self._socket, self._codec)
            assert isinstance(answer, Refused), answer
            self.refused += 1

    def close(self) -> None:
        self._socket.close()


class Attack:
    """Feeds a run batch by batch; with each one, everybody gets a share of the malformed messages."""

    def __init__(self, plan: Plan, entries: list[Entry], rounds: int, seed: int) -> None:
        self._plan, self._entries = plan, entries
        self._writer = LogWriter(plan.stream.folder, plan.stream.topic, 1)
        self._to_shard = [*spoiled(TO_SHARD, rounds, seed), *misplaced_at_shard(STEPS)]
        self._to_dispatcher = [*spoiled(TO_DISPATCHER, rounds, seed), *misplaced_at_dispatcher()]
        self.feed(0)
        self.dispatcher_refused = 0
        self.shards_refused: list[int] = []

    def feed(self, step: int) -> None:
        self._writer.append(0, self._entries[step * BATCH : (step + 1) * BATCH])

    def __call__(self, _threads: Threads, dispatcher: str, shards: tuple[str, ...]) -> None:
        with ExitStack() as stack, closing(self._writer):
            context = stack.enter_context(zmq.Context())
            crew = stack.enter_context(closing(Stranger(context, dispatcher, *FROM_DISPATCHER)))
            stores = [stack.enter_context(closing(Stranger(context, shard, *FROM_SHARD))) for shard in shards]
            for step in range(1, STEPS):
                wait_for_steps(self._plan, step)
                for stranger in stores:
                    stranger.send(self._to_shard[step - 1 :: STEPS - 1])
                crew.send(self._to_dispatcher[step - 1 :: STEPS - 1])
                crew.hear()
                for stranger in stores:
                    stranger.hear(still_waiting=2 * (STEPS + 1))  # refused when their round is announced
                self.feed(step)
            for stranger in stores:
                stranger.hear(still_waiting=2)  # of a round that never comes
            self.dispatcher_refused = crew.refused
            self.shards_refused = [stranger.refused for stranger in stores]


def entries_of(plan: Plan) -> list[Entry]:
    with closing(LogReader(plan.stream.folder, plan.stream.topic)) as reader:
        return [(record.key, record.payload) for record in reader.read(0, 0, 1 << 30)]


def expect_same_bits(result: Result, other: Result) -> None:
    assert result.rows_RT.tobytes() == other.rows_RT.tobytes()
    assert result.last_steps_R.tobytes() == other.last_steps_R.tobytes()
    assert {name: array.tobytes() for name, array in result.dense.items()} == {
        name: array.tobytes() for name, array in other.dense.items()
    }
    assert result.status.quality == other.status.quality
    assert sorted(result.ledger.tolist()) == sorted(other.ledger.tolist())


def test_a_run_that_gets_every_malformed_message_trains_the_same_bits(
    write_topic: WriteTopic, tmp_path: Path, fuzz_rounds: int, fuzz_seed: int
) -> None:
    alone = Plan(write_topic(STEPS * BATCH, "alone", partitions=1), batch=BATCH)
    plan = replace(alone, folder=tmp_path / "attacked", stop_at_end=False, samples=STEPS * BATCH)
    attack, registry = Attack(plan, entries_of(alone), fuzz_rounds, fuzz_seed), CollectorRegistry()
    attacked = train(plan, beside=attack, registry=registry)
    counted = [
        sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "freshet_refused_messages_total"
    ]
    assert attack.dispatcher_refused == sum(counted) > 250 * fuzz_rounds
    assert min(attack.shards_refused) > 300 * fuzz_rounds
    expect_same_bits(attacked, train(alone))


def test_a_workers_malformed_pushes_are_refused_to_it_and_the_right_one_counts(
    fuzz_rounds: int, fuzz_seed: int
) -> None:
    config = RowConfig(dim=3)
    right, rng = np.arange(config.shape().total, dtype=np.float32), random.Random(fuzz_seed)
    with stage(config) as staged:
        staged.announcer.announce(0, new={0: 100, 1: 101})
        staged.announcer.announce(1, pushes={0: ([1], [])})
        worker = staged.peer()
        message = placed(
            Push, {"owned_numbers": numbers(1), "owned_rows": right.tobytes()}, step=1, phase=TRAIN, worker=0
        )
        sent = [spoil for _ in range(fuzz_rounds) for spoil in spoiled_messages(message, rng)]
        for each in sent:
            worker.socket.send_multipart(each.frames)
            answer, _ = worker.receive()
            assert isinstance(answer, Refused), each
        worker.socket.send_multipart(message.frames)
        assert np.array_equal(worker.ask(Peek, PeekArrays(ints(1)))[1].full, right)
        assert len(sent) > 40 * fuzz_rounds

"""A worker's side of the PS, against real shards."""

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
import zmq
from numpy.typing import NDArray

from infra.base.errors import Fenced, WireError
from infra.base.link import Bucket, Link
from infra.base.wire import Codec, bind, send
from ps.client import Pulled, ShardClient
from ps.config import RowConfig
from ps.errors import PsError, Unreachable
from ps.phases import TRAIN
from ps.protocol import FROM_SHARD, Rows, RowsArrays
from ps.start import start_rows
from ps.timing import LinkTimes
from tests.ps.doubles import NO_ROWS, PATIENCE_MILLISECONDS, SEED, ints, stage

ROWS = RowConfig(dim=3)
SHAPE = ROWS.shape()
NO_OWNED = np.empty((0, SHAPE.total), np.float32)
NO_PARTS = np.empty((0, SHAPE.value), np.float32)
NEW = {row: 100 + row for row in range(20)}


def placed(rows: list[int], shards: int) -> NDArray[np.int64]:
    return ints(*sorted(rows, key=lambda row: (row % shards, row)))


def start_of(rows: NDArray[np.int64]) -> NDArray[np.float32]:
    return start_rows(ROWS, SEED, rows.astype(np.uint64) + np.uint64(100))


def pull(client: ShardClient, step: int, full: NDArray[np.int64], values: NDArray[np.int64]) -> Iterator[Pulled]:
    client.ask(step, TRAIN, full, values)
    return (answer for answer in client.answers(step) if isinstance(answer, Pulled))


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_pull_brings_every_row_asked_for_in_its_place(shards: int) -> None:
    full, values = placed([2, 3, 5, 19, 11], shards), placed([0, 7, 9, 4], shards)
    got_full, got_values = np.zeros((5, SHAPE.total), np.float32), np.zeros((4, SHAPE.value), np.float32)
    with stage(ROWS, shards) as staged:
        staged.announcer.announce(0, new=NEW)
        for pulled in pull(staged.client(0), 0, full, values):
            got_full[pulled.full] = pulled.full_KT
            got_values[pulled.values] = pulled.values_KW
            assert pulled.nbytes == pulled.full_KT.nbytes + pulled.values_KW.nbytes
    assert np.array_equal(got_full, start_of(full))
    assert np.array_equal(got_values, start_of(values)[:, : SHAPE.value])


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_pushed_rows_come_back_as_they_were_pushed(shards: int) -> None:
    rows = placed([1, 2, 3, 8, 13], shards)
    written = np.random.default_rng(0).random((5, SHAPE.total), np.float32)
    with stage(ROWS, shards) as staged:
        staged.announcer.announce(0, new=NEW)
        staged.announcer.announce(1, pushes={0: (rows.tolist(), [])}, changed=dict.fromkeys(rows.tolist(), 0))
        client = staged.client(0)
        sent = client.push(1, TRAIN, rows, written, NO_ROWS, NO_PARTS)
        pulled = list(pull(client, 1, rows, NO_ROWS))
        got, steps = client.peek(rows[::-1])
    assert sent > written.nbytes
    assert sum(part.full_KT.shape[0] for part in pulled) == 5
    assert np.array_equal(got, written[::-1])
    assert steps.tolist() == [0] * 5


def test_shard_without_rows_is_not_asked() -> None:
    with stage(ROWS, shards=2) as staged:
        staged.announcer.announce(0, new=NEW)
        staged.announcer.announce(1, pushes={0: ([4], [])})
        client = staged.client(0)
        client.push(1, TRAIN, ints(4), np.zeros((1, SHAPE.total), np.float32), NO_ROWS, NO_PARTS)
        assert [pulled.full for pulled in pull(client, 1, ints(4), NO_ROWS)] == [slice(0, 1)]
        assert staged.announcer.peers[1].ledger()[1] == []


def test_one_shards_rows_arrive_while_another_still_waits() -> None:
    with stage(ROWS, shards=2) as staged:
        staged.announcer.announce(0, new=NEW)
        staged.announcer.announce(1, pushes={1: ([4], [])})
        answers = pull(staged.client(0), 1, placed([4, 5], 2), NO_ROWS)
        assert next(answers).full == slice(1, 2)
        staged.client(1).push(1, TRAIN, ints(4), np.ones((1, SHAPE.total), np.float32), NO_ROWS, NO_PARTS)
        assert np.all(next(answers).full_KT == 1.0)


def test_refused_push_is_raised_by_the_next_pull() -> None:
    with stage(ROWS) as staged:
        staged.announcer.announce(0, new=NEW)
        staged.announcer.announce(1, pushes={0: ([4], [])})
        client = staged.client(0)
        client.push(1, TRAIN, ints(77), np.zeros((1, SHAPE.total), np.float32), NO_ROWS, NO_PARTS)
        with pytest.raises(PsError, match="never announced"):
            next(pull(client, 1, ints(4), NO_ROWS))


def test_client_of_an_old_generation_is_fenced_and_may_join_again() -> None:
    with stage(ROWS) as staged:
        staged.announcer.announce(0, new=NEW)
        client = staged.client(0, generation=1)
        staged.announcer.open(2, 2)
        with pytest.raises(Fenced, match="must join again"):
            next(pull(client, 0, ints(4), NO_ROWS))
        client.open(2, 0)
        staged.announcer.announce(0, generation=2)
        assert np.array_equal(next(pull(client, 0, ints(4), NO_ROWS)).full_KT, start_of(ints(4)))


def test_answer_that_came_too_late_is_not_taken_for_another_step() -> None:
    with stage(ROWS) as staged:
        staged.announcer.announce(0, new=NEW)
        client = staged.client(0)
        client.ask(0, TRAIN, ints(4), NO_ROWS)  # given up
        staged.announcer.announce(1)
        assert np.array_equal(next(pull(client, 1, ints(6), NO_ROWS)).full_KT, start_of(ints(6)))


def test_answer_of_an_older_generation_is_not_taken_for_this_one() -> None:
    replies = Codec(*FROM_SHARD)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as shard:
        endpoint = bind(shard, "tcp://127.0.0.1:*")
        client = ShardClient(context, [endpoint], ROWS, "test")
        client.open(2, 0)
        answers = pull(client, 3, ints(4), NO_ROWS)
        asker, *_ = shard.recv_multipart()
        for generation in (1, 2):
            rows = np.full(SHAPE.total, generation, np.float32)
            header = Rows(run="test", generation=generation, step=3)
            send(shard, replies, header, RowsArrays(full=rows, values=rows[:0]), to=asker)
        assert np.all(next(answers).full_KT == 2)
        client.close()


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_answer_of_another_number_of_rows_than_asked_for_is_an_error(rows: int) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as shard:
        endpoint = bind(shard, "tcp://127.0.0.1:*")
        client = ShardClient(context, [endpoint], ROWS, "test")
        client.open(2, 0)
        answers = pull(client, 3, ints(4, 5), NO_ROWS)
        asker, *_ = shard.recv_multipart()
        full = np.zeros(rows * SHAPE.total, np.float32)
        header = Rows(run="test", generation=2, step=3)
        send(shard, Codec(*FROM_SHARD), header, RowsArrays(full=full, values=full[:0]), to=asker)
        with pytest.raises(WireError, match="same settings"):
            next(answers)
        client.close()


def test_refusal_of_an_older_generation_is_forgotten_with_it() -> None:
    with stage(ROWS) as staged:
        staged.announcer.announce(0, new=NEW)
        client = staged.client(0)
        client.push(0, TRAIN, ints(4), np.zeros((1, SHAPE.total), np.float32), NO_ROWS, NO_PARTS)
        assert client._sockets[0].poll(PATIENCE_MILLISECONDS), "the push was not refused"
        staged.announcer.open(2, 2)
        client.open(2, 0)
        staged.announcer.announce(0, generation=2)
        assert np.array_equal(next(pull(client, 0, ints(4), NO_ROWS)).full_KT, start_of(ints(4)))


def test_shard_that_does_not_answer_is_named() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    silent = context.socket(zmq.ROUTER)
    port = silent.bind_to_random_port("tcp://127.0.0.1")
    endpoint = f"tcp://127.0.0.1:{port}"
    client = ShardClient(context, [endpoint], ROWS, "test", timeout_seconds=0.0)
    client.open(1, 0)
    with pytest.raises(Unreachable, match=f"step 3 from shard 0 at {endpoint} within 0 s"):
        next(pull(client, 3, ints(4), NO_ROWS))
    client.close()
    silent.close(0)
    context.term()


def test_shaped_link_carries_what_is_asked_and_what_is_pulled(monkeypatch: pytest.MonkeyPatch) -> None:
    carried, reserve = list[int](), Bucket.reserve

    def note(bucket: Bucket, nbytes: int) -> float:
        carried.append(nbytes)
        return reserve(bucket, nbytes)

    monkeypatch.setattr(Bucket, "reserve", note)
    with closing(Link(1000.0)) as link, stage(ROWS) as staged:
        staged.announcer.announce(0, new=NEW)
        (pulled,) = pull(staged.client(0, link=link), 0, ints(4, 5), NO_ROWS)
    asked, answered = carried
    assert asked > 2 * 8
    assert answered > pulled.nbytes == 2 * SHAPE.total * 4


def test_push_over_a_slow_link_does_not_wait_for_it() -> None:
    slept: list[float] = []
    link = Link(1e-6, burst_bytes=0, clock=lambda: 0.0, sleep=slept.append)  # a clock that stands still: it never ends
    with closing(link), stage(ROWS) as staged:
        client = staged.client(0, link=link)
        client.push(1, TRAIN, ints(4), np.ones((1, SHAPE.total), np.float32), NO_ROWS, NO_PARTS)
        client.ask(1, TRAIN, ints(4), NO_ROWS)
    assert slept == []


def test_transfers_of_an_interrupted_step_are_not_counted_in_the_next_generation() -> None:
    with stage(ROWS) as staged:
        client = staged.client(0)
        client.ask(0, TRAIN, ints(1), NO_ROWS)  # never answered
        client._timer.gave(100, 1.0)
        client.open(2, 0)
        assert client.take_link_times() == LinkTimes()
        staged.announcer.open(2, workers=1)
        staged.announcer.announce(0, new=NEW, generation=2)
        (pulled,) = pull(client, 0, ints(1), NO_ROWS)
        assert client.take_link_times().down_bytes <= pulled.nbytes


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_a_link_is_timed_without_any_row_and_never_while_rows_are_awaited(shards: int) -> None:
    with stage(ROWS, shards) as staged:
        staged.announcer.announce(0, new=NEW)
        client = staged.client(0)
        timed = client.time_link(60_000)
        assert 60_000 <= timed.down_bytes == timed.up_bytes < 60_000 + 4 * shards
        assert min(timed.down_seconds, timed.up_seconds) > 0.0
        rows = placed([2, 3, 5], shards)
        client.ask(0, TRAIN, rows, NO_ROWS)
        assert client.time_link(60_000) == LinkTimes()
        assert sum(len(answer.full_KT) for answer in client.answers(0) if isinstance(answer, Pulled)) == 3


def test_a_link_is_timed_as_no_faster_than_it_is() -> None:
    with closing(Link(0.002, burst_bytes=0, uplink_gbit=0.001)) as link, stage(ROWS) as staged:
        timed = staged.client(0, link=link).time_link(60_000)
    # a busy machine makes it slower, never faster
    assert 0 < timed.down_bytes * 8e-9 / timed.down_seconds < 0.0021
    assert 0 < timed.up_bytes * 8e-9 / timed.up_seconds < 0.0011

"""Real shards over real sockets: the barrier, parts, fencing, refusals, the ledger."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import zmq
from numpy.typing import NDArray

from infra.base.errors import ConfigError
from infra.base.process import Stop
from infra.base.storage import Storage
from infra.base.wire import NO_ARRAYS, Arrays, Codec, Header, Refused, bind, load_curve, send
from ps.checkpoints.manifest import CheckpointManifest, ShardPart, write_manifest
from ps.config import PsConfig, RowConfig
from ps.main import run_shard
from ps.optimizers import update_reference
from ps.parts import settle_reference
from ps.phases import FLUSH, TRAIN
from ps.protocol import (
    Announce,
    AnnounceArrays,
    CheckpointCommitted,
    CheckpointSaved,
    Digest,
    Heard,
    Ledger,
    Open,
    Peek,
    PeekArrays,
    Pull,
    PullArrays,
    Push,
    Rows,
    Serve,
    Terms,
)
from ps.start import start_rows
from tests.ports import free_port
from tests.ps.doubles import NO_ROWS, RUN, SEED, ShardStage, ints, owned, parts, shard_job, stage

ROWS = RowConfig(dim=3)
SHAPE = ROWS.shape()
NO_FLOATS = np.empty(0, np.float32)


@pytest.fixture
def one_shard() -> Iterator[ShardStage]:
    """One shard with rows 0 to 9 (keys 100 to 109), created by round 0."""
    with stage(ROWS) as staged:
        staged.announcer.announce(0, new={row: 100 + row for row in range(10)})
        yield staged


def start_of(*rows: int) -> NDArray[Any]:
    return start_rows(ROWS, SEED, np.array([100 + row for row in rows], np.uint64))


def gradient(worker: int, rows: int = 1) -> NDArray[Any]:
    return np.random.default_rng(worker).normal(size=(rows, SHAPE.value)).astype(np.float32)


def test_pull_sent_first_is_answered_only_after_the_announced_push(one_shard: ShardStage) -> None:
    puller, pusher = one_shard.peer(), one_shard.peer()
    one_shard.announcer.announce(1, pushes={1: ([4], [])}, changed={4: 0})
    puller.send(Pull, PullArrays(full_numbers=ints(4)), step=1, worker=0)
    puller.ledger()  # the shard has taken the pull, and answered what came after it first
    new = np.arange(SHAPE.total, dtype=np.float32)
    pusher.send(Push, owned(ints(4), new), step=1, phase=TRAIN, worker=1)
    header, rows = puller.receive()
    assert isinstance(header, Rows)
    assert np.array_equal(rows.full, new)


def test_push_and_pull_may_come_before_their_round_is_announced(one_shard: ShardStage) -> None:
    peer = one_shard.peer()
    new = np.arange(SHAPE.total, dtype=np.float32)
    peer.send(Pull, PullArrays(full_numbers=ints(4)), step=1, worker=0)
    peer.send(Push, owned(ints(4), new), step=1, phase=TRAIN, worker=0)
    peer.ledger()
    one_shard.announcer.announce(1, pushes={0: ([4], [])})
    assert np.array_equal(peer.receive()[1].full, new)


def test_later_round_is_not_applied_before_an_earlier_one(one_shard: ShardStage) -> None:
    peer = one_shard.peer()
    one_shard.announcer.announce(1, pushes={0: ([4], [])})
    one_shard.announcer.announce(2, pushes={1: ([4], [])})
    older, newer = np.full(SHAPE.total, 1, np.float32), np.full(SHAPE.total, 2, np.float32)
    peer.send(Push, owned(ints(4), newer), step=2, phase=TRAIN, worker=1)
    assert np.array_equal(peer.ask(Peek, PeekArrays(ints(4)))[1].full, start_of(4)[0])
    peer.send(Push, owned(ints(4), older), step=1, phase=TRAIN, worker=0)
    assert np.array_equal(peer.ask(Peek, PeekArrays(ints(4)))[1].full, newer)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_parts_in_any_order_are_summed_in_worker_order_and_applied_once(order: tuple[int, ...]) -> None:
    with stage(ROWS, workers=3) as staged:
        peer = staged.peer()
        staged.announcer.announce(0, new={0: 100, 1: 101})
        staged.announcer.announce(1, pushes=dict.fromkeys(range(3), ([], [1])), settle=[1], changed={1: 0})
        for worker in order:
            part = gradient(worker).reshape(-1)
            peer.send(Push, parts(ints(1), part), step=1, phase=TRAIN, worker=worker)
        _, row = peer.ask(Peek, PeekArrays(ints(1)))
    total = settle_reference({worker: gradient(worker) for worker in range(3)})
    assert np.array_equal(row.full, update_reference(ROWS, start_of(1), total)[0])
    assert row.steps.tolist() == [0]


def test_part_pushed_early_by_an_eviction_waits_for_the_others(one_shard: ShardStage) -> None:
    peer = one_shard.peer()
    one_shard.announcer.announce(1, pushes={1: ([], [6])})
    peer.send(Push, parts(ints(6), gradient(1).reshape(-1)), step=1, phase=TRAIN, worker=1)
    assert np.array_equal(peer.ask(Peek, PeekArrays(ints(6)))[1].full, start_of(6)[0])
    one_shard.announcer.announce(5, pushes={0: ([], [6])}, settle=[6], changed={6: 0})
    peer.send(Push, parts(ints(6), gradient(0).reshape(-1)), step=5, phase=TRAIN, worker=0)
    expected = update_reference(ROWS, start_of(6), gradient(0) + gradient(1))
    assert np.array_equal(peer.ask(Peek, PeekArrays(ints(6)))[1].full, expected[0])


def test_flush_round_writes_back_and_last_steps_say_when_rows_changed(one_shard: ShardStage) -> None:
    peer = one_shard.peer()
    one_shard.announcer.announce(8, phase=FLUSH, pushes={0: ([2, 3], [])}, changed={2: 7, 3: 5})
    written = np.arange(2 * SHAPE.total, dtype=np.float32)
    peer.send(Push, owned(ints(2, 3), written), step=8, phase=FLUSH, worker=0)
    _, rows = peer.ask(Peek, PeekArrays(ints(2, 3, 4)))
    assert np.array_equal(rows.full[: 2 * SHAPE.total], written)
    assert rows.steps.tolist() == [7, 5, -1]


def test_ledger_has_a_line_per_round_and_worker(one_shard: ShardStage) -> None:
    peer = one_shard.peer()
    one_shard.announcer.announce(1, pushes={0: ([0, 1], []), 1: ([], [2, 3, 4])})
    rows, gradients = np.zeros(2 * SHAPE.total, np.float32), gradient(0, 3).reshape(-1)
    peer.send(Push, owned(ints(0, 1), rows), step=1, phase=TRAIN, worker=0)
    peer.send(Push, parts(ints(2, 3, 4), gradients), step=1, phase=TRAIN, worker=1)
    wanted = PullArrays(full_numbers=ints(5), value_numbers=ints(6, 7))
    assert isinstance(peer.ask(Pull, wanted, step=1, worker=1)[0], Rows)
    ledger, lines = peer.ledger()
    assert ledger.rows == 10
    assert lines == [[1, TRAIN, 0, 0, 2, 0, 0, 0], [1, TRAIN, 1, 3, 0, 3, 0, 0]]


def test_older_generation_is_refused_and_told_so(one_shard: ShardStage) -> None:
    peer = one_shard.peer()
    one_shard.announcer.open(2, 2)
    one_shard.announcer.announce(1, pushes={0: ([4], [])}, generation=2)
    late = owned(ints(4), np.zeros(SHAPE.total, np.float32))
    messages: list[tuple[type[Header], Arrays, dict[str, Any]]] = [
        (Push, late, {"step": 1, "phase": TRAIN, "worker": 0}),
        (Pull, PullArrays(full_numbers=ints(4)), {"worker": 0}),
        (Peek, PeekArrays(ints(4)), {}),
        (Open, NO_ARRAYS, {"workers": 2}),
        (Announce, AnnounceArrays(), {"phase": 0, "pushers": []}),
    ]
    for kind, arrays, fields in messages:
        header, _ = peer.ask(kind, arrays, **fields)
        assert isinstance(header, Refused)
        assert (header.generation, header.current) == (1, 2)
        assert "must join again" in header.reason
    assert np.array_equal(peer.ask(Peek, PeekArrays(ints(4)), generation=2)[1].full, start_of(4)[0])


def test_other_run_is_refused(one_shard: ShardStage) -> None:
    header, _ = one_shard.peer().ask(Peek, PeekArrays(ints(4)), run="another")
    assert isinstance(header, Refused)
    assert header.run == RUN
    assert "'another'" in header.reason


def test_generation_not_opened_yet_is_refused(one_shard: ShardStage) -> None:
    header, _ = one_shard.peer().ask(Pull, PullArrays(full_numbers=ints(4)), generation=2, worker=0)
    assert isinstance(header, Refused)
    assert "open a generation" in header.reason


def test_new_generation_refuses_waiting_pulls_and_forgets_rounds_and_parts(one_shard: ShardStage) -> None:
    peer = one_shard.peer()
    part = gradient(1).reshape(-1)
    one_shard.announcer.announce(1, pushes={1: ([], [6])})
    peer.send(Push, parts(ints(6), part), step=1, phase=TRAIN, worker=1)
    one_shard.announcer.announce(2, pushes={0: ([4], [])})
    peer.send(Pull, PullArrays(full_numbers=ints(4)), step=2, worker=1)
    peer.ledger()
    one_shard.announcer.open(2, 2)
    assert "generation 2 has begun" in peer.receive()[0].reason
    one_shard.announcer.announce(1, pushes={1: ([], [6])}, settle=[6], generation=2)
    peer.send(Push, parts(ints(6), part), step=1, phase=TRAIN, worker=1, generation=2)
    expected = update_reference(ROWS, start_of(6), gradient(1))
    assert np.array_equal(peer.ask(Peek, PeekArrays(ints(6)), generation=2)[1].full, expected[0])


def test_same_generation_may_be_opened_again_without_loss(one_shard: ShardStage) -> None:
    peer = one_shard.peer()
    one_shard.announcer.announce(1, pushes={0: ([4], [])})
    one_shard.announcer.open(1, 2)
    peer.send(Push, owned(ints(4), np.ones(SHAPE.total, np.float32)), step=1, phase=TRAIN, worker=0)
    assert np.all(peer.ask(Peek, PeekArrays(ints(4)))[1].full == 1.0)


def test_generation_that_another_dispatcher_opened_is_refused(one_shard: ShardStage) -> None:
    header, _ = one_shard.peer().ask(Open, workers=2, terms=Terms(0, 1, {}))
    assert isinstance(header, Refused)
    assert "opened by" in header.reason


def test_ledger_of_a_new_generation_is_empty(one_shard: ShardStage) -> None:
    one_shard.announcer.announce(1, pushes={0: ([4], [])})
    peer = one_shard.peer()
    peer.send(Push, owned(ints(4), np.zeros(SHAPE.total, np.float32)), step=1, phase=TRAIN, worker=0)
    assert len(peer.ledger()[1]) == 1
    one_shard.announcer.open(2, 2)
    assert peer.ledger(2)[1] == []


@pytest.mark.parametrize("number", [10, -1])
def test_row_never_announced_is_refused(one_shard: ShardStage, number: int) -> None:
    peer = one_shard.peer()
    one_shard.announcer.announce(1, pushes={0: ([4], [])})
    row = np.zeros(SHAPE.total, np.float32)
    peek = peer.ask(Peek, PeekArrays(ints(number)))[0]
    pull = peer.ask(Pull, PullArrays(value_numbers=ints(number)), step=0, worker=0)[0]
    push = peer.ask(Push, owned(ints(number), row), step=1, phase=TRAIN, worker=0)[0]
    assert all(isinstance(header, Refused) and "never announced" in header.reason for header in (peek, pull, push))


def test_push_of_rows_announced_for_another_worker_is_refused_and_the_right_one_counts(one_shard: ShardStage) -> None:
    peer = one_shard.peer()
    one_shard.announcer.announce(1, pushes={0: ([4], []), 1: ([5], [])})
    wrong, right = np.full(SHAPE.total, 1, np.float32), np.full(SHAPE.total, 2, np.float32)
    for moved in (owned(ints(5), wrong), owned(ints(4, 4), np.tile(wrong, 2)), owned(NO_ROWS, NO_FLOATS)):
        refused, _ = peer.ask(Push, moved, step=1, phase=TRAIN, worker=0)
        assert "not the rows announced for it" in refused.reason
    for worker in range(2):
        peer.send(Push, owned(ints(4 + worker), right), step=1, phase=TRAIN, worker=worker)
    assert np.all(peer.ask(Peek, PeekArrays(ints(4, 5)))[1].full == 2.0)


def test_early_push_of_a_stranger_does_not_displace_the_workers_own(one_shard: ShardStage) -> None:
    stranger, peer = one_shard.peer(), one_shard.peer()
    wrong, right = np.full(SHAPE.total, 1, np.float32), np.full(SHAPE.total, 2, np.float32)
    stranger.send(Push, owned(ints(5), wrong), step=1, phase=TRAIN, worker=0)
    stranger.ledger()
    peer.send(Push, owned(ints(4), right), step=1, phase=TRAIN, worker=0)
    peer.ledger()
    one_shard.announcer.announce(1, pushes={0: ([4], [])})
    assert "not the rows announced for it" in stranger.receive()[0].reason
    assert np.all(peer.ask(Peek, PeekArrays(ints(4)))[1].full == 2.0)


def test_early_push_of_an_unknown_row_is_refused_at_once(one_shard: ShardStage) -> None:
    lost = owned(ints(99), np.zeros(SHAPE.total, np.float32))
    assert "never announced" in one_shard.peer().ask(Push, lost, step=1, phase=TRAIN, worker=0)[0].reason


def test_duplicate_push_is_refused_and_the_first_counts(one_shard: ShardStage) -> None:
    peer = one_shard.peer()
    one_shard.announcer.announce(1, pushes={0: ([4], []), 1: ([], [])})
    first, again = np.full(SHAPE.total, 1, np.float32), np.full(SHAPE.total, 2, np.float32)
    peer.send(Push, owned(ints(4), first), step=1, phase=TRAIN, worker=0)
    refused, _ = peer.ask(Push, owned(ints(4), again), step=1, phase=TRAIN, worker=0)
    assert "pushed twice" in refused.reason
    peer.send(Push, owned(NO_ROWS, NO_FLOATS), step=1, phase=TRAIN, worker=1)
    assert np.array_equal(peer.ask(Peek, PeekArrays(ints(4)))[1].full, first)


def test_new_rows_out_of_order_are_refused(one_shard: ShardStage) -> None:
    created = AnnounceArrays(new_numbers=ints(12), new_keys=np.array([5], np.uint64))
    header, _ = one_shard.announcer.peers[0].ask(Announce, created, step=1, phase=TRAIN, pushers=[])
    assert isinstance(header, Refused)
    assert "do not follow the 10 rows known" in header.reason


def test_round_that_cannot_be_applied_breaks_the_generation_but_not_the_shard(one_shard: ShardStage) -> None:
    peer = one_shard.peer()
    peer.send(Pull, PullArrays(full_numbers=ints(1)), step=1, worker=0)
    peer.ledger()
    announcer, settling = one_shard.announcer.peers[0], AnnounceArrays(settled=ints(3))
    assert "have no part" in announcer.ask(Announce, settling, step=1, phase=TRAIN, pushers=[])[0].reason
    assert "have no part" in peer.receive()[0].reason
    assert "is broken" in peer.ask(Pull, PullArrays(full_numbers=ints(1)), step=0, worker=0)[0].reason
    one_shard.announcer.open(2, 2)
    one_shard.announcer.announce(1, generation=2)
    assert isinstance(peer.ask(Pull, PullArrays(full_numbers=ints(1)), step=1, worker=0, generation=2)[0], Rows)


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"\xff\x00garbage"],
        [b"\x81\xa4type\xa4Evil"],
        [b"\x84\xa4type\xa4Peek\xa3run\xa4test\xaageneration\x01\xa4step\x00"],
        [b"\x84\xa4type\xa4Peek\xa3run\xa4test\xaageneration\x01\xa4step\x00", b"123"],
        [b"\x84\xa4type\xa4Peek\xa3run\xa4test\xaageneration\x01\xa4step\x00", b"12345678", b""],
        [b"\x84\xa4type\xa5Count\xa3run\xa4test\xaageneration\x01\xa4step\xcf" + b"\xff" * 8],
        [b"\x85\xa1x" + b"\x91" * 100_000 + b"\xc0\xa4type\xa5Count\xa3run\xa4test\xaageneration\x01\xa4step\x00"],
        [b"\x85\xa1x" + b"\x91" * 10_000 + b"\xc0\xa4type\xa5Count\xa3run\xa4test\xaageneration\x01\xa4step\x00"],
    ],
    ids=[
        "empty",
        "garbage",
        "type",
        "missing frame",
        "checkpoint frame",
        "extra frame",
        "impossible step",
        "long",
        "deep",
    ],
)
def test_malformed_message_is_refused_and_the_shard_goes_on(one_shard: ShardStage, frames: list[bytes]) -> None:
    peer = one_shard.peer()
    peer.socket.send_multipart(frames)
    assert isinstance(peer.receive()[0], Refused)
    assert isinstance(peer.ledger()[0], Ledger)


def test_floats_that_do_not_fit_the_rows_are_refused(one_shard: ShardStage) -> None:
    peer = one_shard.peer()
    short = np.zeros(SHAPE.total - 1, np.float32)
    push = peer.ask(Push, owned(ints(4), short), step=1, phase=TRAIN, worker=0)[0]
    announcement = peer.ask(Announce, AnnounceArrays(new_numbers=ints(10)), step=1, phase=TRAIN, pushers=[])[0]
    assert "same settings" in push.reason
    assert "1 new_numbers, 0 new_keys" in announcement.reason


@pytest.mark.parametrize(("worker", "reason"), [(2, "not one of the 2 workers"), (-1, ">= 0"), (2**40, "<= 1023")])
def test_worker_outside_the_generation_is_refused(one_shard: ShardStage, worker: int, reason: str) -> None:
    header, _ = one_shard.peer().ask(Pull, PullArrays(full_numbers=ints(1)), worker=worker)
    assert isinstance(header, Refused)
    assert reason in header.reason


@pytest.mark.parametrize("workers", [-1, 0, 2**40])
def test_generation_of_impossible_size_is_refused_and_the_open_one_goes_on(one_shard: ShardStage, workers: int) -> None:
    peer = one_shard.peer()
    header, _ = peer.ask(Open, generation=2, workers=workers)
    assert isinstance(header, Refused)
    assert isinstance(peer.ask(Pull, PullArrays(full_numbers=ints(1)), worker=0)[0], Rows)


@pytest.mark.parametrize("kind", [Pull, Peek])
def test_more_rows_than_there_are_are_not_gathered(one_shard: ShardStage, kind: type[Header]) -> None:
    often = np.zeros(11, np.int64)
    asked, fields = (PullArrays(value_numbers=often), {"worker": 0}) if kind is Pull else (PeekArrays(often), {})
    assert "each row at most once" in one_shard.peer().ask(kind, asked, **fields)[0].reason


def test_round_announced_by_another_than_opened_the_generation_is_refused(one_shard: ShardStage) -> None:
    header, _ = one_shard.peer().ask(Announce, AnnounceArrays(), step=9, phase=TRAIN, pushers=[])
    assert "which opened the generation" in header.reason
    one_shard.announcer.announce(1)
    assert isinstance(one_shard.peer().ask(Pull, PullArrays(full_numbers=ints(1)), step=1, worker=0)[0], Rows)


def test_refused_announcement_creates_no_row(one_shard: ShardStage) -> None:
    peer = one_shard.announcer.peers[0]
    created = AnnounceArrays(new_numbers=ints(10), new_keys=np.array([5], np.uint64), settled=ints(11))
    assert "never announced" in peer.ask(Announce, created, step=1, phase=TRAIN, pushers=[])[0].reason
    assert peer.ledger()[0].rows == 10


def test_float64_rows_keep_their_precision() -> None:
    config = RowConfig(dim=3, float_dtype="float64")
    with stage(config) as staged:
        staged.announcer.announce(0, new={0: 100})
        rows, _ = staged.client(0).peek(ints(0))
    assert rows.dtype == np.float64
    assert np.array_equal(rows, start_rows(config, SEED, np.array([100], np.uint64)))


def test_encrypted_shard_serves_those_who_know_its_key(tmp_path: Any) -> None:
    server, worker = zmq.curve_keypair(), zmq.curve_keypair()
    (tmp_path / "server.public").write_text(server[0].decode())
    (tmp_path / "worker.public").write_text(worker[0].decode())
    for name, pair in (("ps", server), ("worker", worker)):
        (tmp_path / f"{name}.secret").write_text(f"{pair[0].decode()} {pair[1].decode()}")
    with stage(ROWS, curve=(load_curve(tmp_path, "ps"), load_curve(tmp_path, "worker"))) as staged:
        staged.announcer.announce(0, new={0: 100})
        assert np.array_equal(staged.client(0).peek(ints(0))[0], start_of(0))


def test_shard_that_is_asked_to_stop_ends() -> None:
    stop = Stop()
    run_shard(shard_job(0, ROWS, PsConfig()), stop, lambda _: stop.request("enough"))


def test_endpoint_that_cannot_be_bound_is_a_clear_error() -> None:
    job = replace(shard_job(0, ROWS, PsConfig()), endpoint="tcp://127.0.0.1:no-port")
    with pytest.raises(ValueError, match="choose a free tcp://HOST:PORT"):
        run_shard(job, Stop(), lambda _: None)


def test_checkpoint_is_taken_while_the_shard_serves_and_restored_by_another(tmp_path: Path) -> None:
    rows = np.arange(2 * SHAPE.total, dtype=np.float32)
    with stage(ROWS, storage=str(tmp_path)) as first:
        announcer = first.announcer
        announcer.announce(0, new={0: 100, 1: 101}, pushes={0: ([0, 1], [])}, changed={0: 0, 1: 0})
        announcer.peers[0].send(Push, owned(ints(0, 1), rows), phase=TRAIN, worker=0)
        announcer.peers[0].send(Announce, AnnounceArrays(), phase=FLUSH, pushers=[], checkpoint=1)
        saved, _ = announcer.peers[0].receive()
        assert isinstance(saved, CheckpointSaved)
        told: dict[str, Any] = {"generation": 1, "at_seconds": 0.0, "dispatcher": saved.parts[0]}
        shards = (ShardPart(0, saved.rows, tuple(saved.parts)),)
        write_manifest(Storage.at(tmp_path), CheckpointManifest(run=RUN, number=1, step=0, shards=shards, **told))
        announcer.peers[0].send(CheckpointCommitted, checkpoint=1)
        digest = announcer.peers[0].ask(Digest)[0].digest
    with stage(ROWS, storage=str(tmp_path)) as second:
        peer = second.announcer.peers[0]
        assert peer.ask(Open, generation=2, workers=1, restore=1)[0].rows == 2
        assert peer.ask(Digest, generation=2)[0].digest == digest
        assert np.array_equal(peer.ask(Peek, PeekArrays(ints(0, 1)), generation=2)[1].full, rows)


def test_a_shard_that_the_dispatcher_refuses_ends_with_the_reason() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as dispatcher, ThreadPoolExecutor(1) as pool:
        job = replace(shard_job(0, ROWS, PsConfig()), dispatcher_endpoint=bind(dispatcher, "tcp://127.0.0.1:*"))
        shard = pool.submit(run_shard, job, Stop(), lambda _: None)
        sender, *frames = dispatcher.recv_multipart()
        offer, _ = Codec(Serve).decode(frames)
        assert (offer.run, offer.terms.shard) == (RUN, 0)
        at: dict[str, Any] = {"run": RUN, "generation": -1, "step": 0}
        send(dispatcher, Codec(Refused), Refused(**at, reason="rows.rate differs"), to=sender)
        with pytest.raises(ConfigError, match=r"the dispatcher at tcp://.* refused this shard: rows\.rate differs"):
            shard.result(60)


def test_a_shard_offers_itself_to_a_dispatcher_that_was_started_later() -> None:
    stop, endpoint = Stop(), f"tcp://127.0.0.1:{free_port()}"
    with zmq.Context() as context, context.socket(zmq.ROUTER) as dispatcher, ThreadPoolExecutor(1) as pool:
        job, ready = replace(shard_job(0, ROWS, PsConfig()), dispatcher_endpoint=endpoint), Event()
        shard = pool.submit(run_shard, job, stop, lambda _: ready.set())
        assert ready.wait(60)
        bind(dispatcher, endpoint)
        for _ in range(2):
            sender, *frames = dispatcher.recv_multipart()
            assert isinstance(Codec(Serve).decode(frames)[0], Serve)
            send(dispatcher, Codec(Heard), Heard(run=RUN, generation=-1, step=0), to=sender)
        stop.request("test")
        shard.result(60)

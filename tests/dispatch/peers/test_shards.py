from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from dispatch.errors import ShardDisagrees, ShardRefused
from dispatch.peers.shards import Shards, _new_rows
from dispatch.placement.rows.directory import Directory
from dispatch.placement.rows.index import BatchRows
from ps.checkpoints.manifest import manifest_name
from ps.client import ShardClient
from ps.config import RowConfig
from ps.phases import FLUSH
from tests.ps.doubles import PATIENCE_MILLISECONDS, RUN, running_shards


@pytest.fixture
def shards() -> Iterator[Shards]:
    with running_shards(RowConfig(dim=2), shards=2) as endpoints, zmq.Context() as context:
        made = Shards(context, endpoints, RUN)
        made.open(1, 0, 2)
        yield made
        made.close()


def test_an_announcement_that_was_refused_is_raised_by_the_next_check(shards: Shards) -> None:
    nothing = Directory(np.full(2, 4), "lru", 2).flush()
    shards.announce_flush(1, (3, FLUSH), nothing)
    shards.announce_flush(1, (3, FLUSH), nothing)
    assert shards._sockets[1].poll(PATIENCE_MILLISECONDS)
    with pytest.raises(ShardRefused, match=r"refused .*: OutOfOrder: round .* was announced after"):
        shards.check()


def test_announcements_that_were_carried_out_leave_nothing_to_check(shards: Shards) -> None:
    shards.announce_flush(1, (3, FLUSH), Directory(np.full(2, 4), "lru", 2).flush())
    assert [ledger.step.tolist() for ledger in shards.ledgers(1)] == [[], []]
    shards.check()


def test_a_dispatcher_that_connects_again_is_known_by_the_shards(shards: Shards) -> None:
    for socket, endpoint in zip(shards._sockets, shards._endpoints, strict=True):
        socket.disconnect(endpoint)
        socket.connect(endpoint)
    shards.announce_flush(1, (3, FLUSH), Directory(np.full(2, 4), "lru", 2).flush())
    assert len(shards.ledgers(1)) == 2
    shards.check()


def test_a_round_is_applied_with_its_last_push() -> None:
    rows, config = (
        BatchRows(np.array([[0], [1]], np.int32), np.arange(2), 0, np.arange(2, dtype=np.uint64)),
        RowConfig(dim=2),
    )
    with running_shards(config, shards=1) as endpoints, zmq.Context() as context:
        shards, directory = Shards(context, endpoints, RUN), Directory(np.full(2, 4), "lru", 1)
        shards.open(1, 0, 2)
        shards.announce_step(1, 1, directory.plan(1, rows, np.array([0, 1], np.int32)), rows)
        flush = directory.flush()
        shards.announce_flush(1, (1, FLUSH), flush)
        for worker, plan in enumerate(flush.workers):
            assert not shards.have_applied(1, 1, FLUSH)
            client = ShardClient(context, endpoints, config, RUN)
            client.open(1, worker)
            moved = plan.push_owned.rows
            floats = np.zeros((moved.size, config.shape().total), np.float32)
            client.push(1, FLUSH, moved, floats, np.empty(0, np.int64), floats[:0, : config.shape().value])
            client.peek(np.arange(1))
            client.close()
        assert shards.have_applied(1, 1, FLUSH)
        shards.close()


@pytest.mark.parametrize("first_new", range(5))
def test_new_rows_go_to_their_shard_under_its_own_numbers(first_new: int) -> None:
    keys = np.arange(100, 107, dtype=np.uint64)
    rows = BatchRows(np.empty((0, 1), np.int32), np.empty(0, np.int64), first_new, keys)
    found: dict[int, int] = {}
    for shard in range(3):
        numbers, its_keys = _new_rows(rows, shard, 3)
        found |= {int(number) * 3 + shard: int(key) for number, key in zip(numbers, its_keys, strict=True)}
    assert found == {first_new + place: 100 + place for place in range(7)}


SETTINGS = {"rows.rate": "0.05"}


def test_a_shard_with_other_settings_refuses_to_be_opened() -> None:
    with running_shards(RowConfig(dim=2), settings=SETTINGS) as endpoints, zmq.Context() as context:
        shards = Shards(context, endpoints, RUN, settings={"rows.rate": "0.5"})
        with pytest.raises(
            ShardDisagrees, match=r"Disagreement: .*rows.rate is 0.05 in shard 0 and 0.5 in the dispatcher"
        ):
            shards.open(1, 0, 2)
        shards.close()


@pytest.mark.parametrize(("content", "error"), [(None, "StorageError"), (b"nonsense", "CheckpointDamaged")])
def test_a_shard_says_whether_a_checkpoint_is_damaged_or_cannot_be_read(
    tmp_path: Path, content: bytes | None, error: str
) -> None:
    manifest = tmp_path / manifest_name(3)
    if content is None:
        manifest.mkdir()  # the system refuses to read it
    else:
        manifest.write_bytes(content)
    with running_shards(RowConfig(dim=2), storage=str(tmp_path)) as endpoints, zmq.Context() as context:
        shards = Shards(context, endpoints, RUN)
        with pytest.raises(ShardRefused, match=f"{error}: .*{manifest.name}") as caught:
            shards.open(1, 0, 2, restore=3)
        assert caught.value.error == error
        shards.close()


def test_shards_in_the_wrong_order_refuse_to_be_opened() -> None:
    with running_shards(RowConfig(dim=2), shards=2) as endpoints, zmq.Context() as context:
        shards = Shards(context, endpoints[::-1], RUN)
        with pytest.raises(
            ShardRefused, match=r"shard 1 of 2, and the dispatcher takes it for shard 0 of 2; .* --shard"
        ):
            shards.open(1, 0, 2)
        shards.close()

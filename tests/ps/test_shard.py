"""What a shard counts and how it reuses memory; its behaviour towards others is tested over sockets in test_main.py."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dispatch.protocol import TRAIN, Announce, Open, Peek, Push
from infra.wire import Header
from ps.config import RowConfig
from ps.rounds import Received
from ps.shard import Reply, Shard
from tests.ps.doubles import NO_ROWS, ints

ROWS = RowConfig(dim=3)
NO_FLOATS = np.empty(0, np.float32)


def tell(shard: Shard, kind: type[Header], *bulk: NDArray[Any], **fields: Any) -> list[Reply]:
    common: dict[str, Any] = {"run": "r", "generation": 1, "step": 0}
    return list(shard.receive(Received(b"w", kind(**common | fields), list(bulk))))


def opened() -> Shard:
    shard = Shard(ROWS, "r", seed=1, chunk_rows=4)
    tell(shard, Open, workers=1)
    tell(shard, Announce, np.arange(9), np.arange(9, dtype=np.uint64), NO_ROWS, NO_ROWS, NO_ROWS, phase=0, pushers=[])
    return shard


def test_fenced_push_is_counted_but_not_answered() -> None:
    shard = opened()
    assert tell(shard, Push, NO_ROWS, NO_FLOATS, NO_ROWS, NO_FLOATS, phase=TRAIN, worker=0, generation=0) == []
    assert shard.refused == {"Push": 1}


def test_reply_that_was_sent_lends_its_memory_to_the_next() -> None:
    shard = opened()
    (first,) = tell(shard, Peek, ints(8))
    assert first.buffer is not None
    first.buffer.sent([])
    (second,) = tell(shard, Peek, ints(2, 3))
    (third,) = tell(shard, Peek, ints(2))
    assert second.buffer is not third.buffer
    assert first.buffer in (second.buffer, third.buffer)

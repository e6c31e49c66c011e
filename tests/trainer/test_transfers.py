"""The order in which a worker's transfers begin, noted by a client that sends nothing."""

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from dispatch.protocol import Early, Order, OrderArrays
from ps.config import RowConfig
from ps.phases import EARLY, EVICT, FLUSH, TRAIN
from ps.protocol import BARE
from trainer.cache import RowCache
from trainer.transfers import Transfers
from trainer.worker import Stopwatch, Worker

ROWS = RowConfig(dim=2)
EARLY_FIRST = Early(owned=1, parts=0, full=1, values=0, evicted_owned=1, evicted_parts=0)


class NotingClient:
    """Notes what it is told to send: the kind, the phase, and the rows."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def ask(self, _step: int, phase: int, full: Any, _values: Any) -> None:
        self.told.append(("ask", phase, full.tolist()))

    def ask_dense(self, _step: int, form: int) -> None:
        self.told.append(("ask dense", form))

    def push(self, _step: int, phase: int, owned: Any, *_floats: Any) -> int:
        self.told.append(("push", phase, owned.tolist()))
        return len(owned)


@pytest.fixture
def client() -> NotingClient:
    return NotingClient()


@pytest.fixture
def transfers(client: NotingClient) -> Transfers:
    cache = RowCache(8, ROWS.shape(), torch.float32, torch.device("cpu"))
    return Transfers(client, cache, None)  # type: ignore[arg-type]


def ordered() -> tuple[Order, OrderArrays]:
    """Pushes rows 10 early, 20 late and 30 to make room; pulls rows 1 early and 2 late."""
    slots = np.arange(3, dtype=np.int32)
    work = OrderArrays(
        owned_rows=np.array([10, 20, 30]), owned_slots=slots, full_rows=np.array([1, 2]), full_slots=slots[:2]
    )
    sizes: dict[str, Any] = {"samples": 1, "batch": 1, "alone": 1, "early": EARLY_FIRST, "dense_pull": BARE}
    return Order(run="r", generation=1, step=1, phase=TRAIN, **sizes), work


def test_questions_go_ahead_of_what_is_pushed(transfers: Transfers, client: NotingClient) -> None:
    transfers.begin_early(*ordered())
    assert client.told == [("ask", EARLY, [1]), ("ask dense", BARE), ("push", EARLY, [10]), ("push", EVICT, [30])]
    client.told.clear()
    transfers.begin_late(*ordered())
    assert client.told == [("ask", TRAIN, [2]), ("push", TRAIN, [20])]
    assert transfers.moved.rows_up == 3, "what was pushed early counts with its order"


def test_an_order_that_was_not_seen_ahead_begins_both_parts(transfers: Transfers, client: NotingClient) -> None:
    transfers.begin_late(*ordered())
    assert [kind for kind, *_ in client.told] == ["ask", "ask dense", "push", "push", "ask", "push"]


def test_early_transfers_begin_once(transfers: Transfers, client: NotingClient) -> None:
    transfers.begin_early(*ordered())
    before = list(client.told)
    transfers.begin_early(*ordered())
    assert client.told == before


def test_requests_may_be_sent_before_anything_is_pushed(transfers: Transfers, client: NotingClient) -> None:
    transfers.ask_early(*ordered())
    assert client.told == [("ask", EARLY, [1]), ("ask dense", BARE)]
    client.told.clear()
    transfers.begin_early(*ordered())
    assert client.told == [("push", EARLY, [10]), ("push", EVICT, [30])]


@pytest.mark.parametrize(
    ("device", "owes_gradient", "is_gradient_sent", "pushes"),
    [
        ("cpu", True, False, True),
        ("cuda", True, False, False),
        ("cuda", True, True, True),
        ("cuda", False, False, True),
    ],
)
def test_a_gpu_pushes_early_rows_after_a_gradient_that_others_wait_for(
    transfers: Transfers,
    client: NotingClient,
    device: str,
    owes_gradient: bool,
    is_gradient_sent: bool,
    pushes: bool,
) -> None:
    following, work = ordered()
    current = msgspec.structs.replace(following, step=0, owes_gradient=owes_gradient)
    worker = SimpleNamespace(device=torch.device(device), _transfers=transfers)
    Worker._look_ahead(worker, current, lambda: (following, work), Stopwatch(), is_gradient_sent)  # type: ignore[arg-type]
    assert ("push" in {kind for kind, *_ in client.told}) is pushes
    assert client.told[:2] == [("ask", EARLY, [1]), ("ask dense", BARE)]


def test_nothing_begins_early_while_a_flush_is_next(transfers: Transfers, client: NotingClient) -> None:
    _, work = ordered()
    flush = Order(run="r", generation=1, step=1, phase=FLUSH, samples=0, batch=0, alone=0)
    transfers.begin_early(flush, work)
    assert client.told == []

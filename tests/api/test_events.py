"""Streams of events whose clients come and go, without a server around them."""

import asyncio
from types import SimpleNamespace
from typing import Any

from api.routes.events import PAGE, EventStream
from api.store.rows import StoredEvent


class SlowStore:
    """Has endless events, and takes its time to read them."""

    def __init__(self) -> None:
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()
        self.is_read_to_the_end = False

    async def events(self, _run: str, after: int, limit: int) -> tuple[StoredEvent, ...]:
        self.begun.set()
        await self.may_end.wait()
        self.is_read_to_the_end = True
        return tuple(StoredEvent("r", after + 1 + number, 0, "checkpoint", {}, 0.0) for number in range(limit))


def stream_of(store: SlowStore) -> EventStream:
    parts: Any = SimpleNamespace(store=SimpleNamespace(runs=store), closing=asyncio.Event())
    run: Any = SimpleNamespace(
        place=SimpleNamespace(name="r"),
        projector=SimpleNamespace(changed=asyncio.Event()),
        live=SimpleNamespace(status=None),
    )
    return EventStream(parts, run, 0, 0)


def test_a_client_that_goes_in_the_middle_of_a_read_leaves_the_read_to_end() -> None:
    async def go() -> bool:
        store = SlowStore()
        asking = asyncio.ensure_future(anext(stream_of(store).lines()))
        await store.begun.wait()
        asking.cancel()
        await asyncio.wait([asking])
        store.may_end.set()
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
        return store.is_read_to_the_end

    assert asyncio.run(go())


def test_no_more_than_a_page_is_kept_for_a_client_that_does_not_take_it() -> None:
    async def first() -> bytes:
        store = SlowStore()
        store.may_end.set()
        return await anext(stream_of(store).lines())

    assert asyncio.run(first()).count(b"event: checkpoint") == PAGE <= 100

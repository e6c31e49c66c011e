"""Streams of events whose clients come and go, without a server around them."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

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


def test_statuses_are_a_second_apart_however_often_they_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("api.routes.events.monotonic", lambda: now)
    stream = stream_of(SlowStore())
    sent = []
    for number in range(9):  # four a second
        now = 100.0 + number / 4
        live: Any = SimpleNamespace(status=object(), encoded=b"%d" % number)
        stream._run.live = live
        sent.append(stream._status())
    assert [status for status in sent if status is not None] == [b"0", b"4", b"8"]

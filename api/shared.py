"""Shares answers that several clients request at the same time: history that takes a while to read is read once."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import NamedTuple

MOST_KEPT = 32
"""Number of answers that are kept; each has at most some hundred kilobytes."""


class EncodedPage(NamedTuple):
    """A page of a list, encoded."""

    body: bytes
    next: str | None
    """Token of the next page; None: this is the last page."""


class SharedAnswers:
    """The newest answers, by request. A client that asks for an answer that is being made waits for it."""

    def __init__(self) -> None:
        self._made: dict[Hashable, asyncio.Future[EncodedPage]] = {}

    async def get(self, key: Hashable, make: Callable[[], Awaitable[EncodedPage]]) -> EncodedPage:
        """``key`` is everything that the answer depends on, including the cursor of the data."""
        made = self._made.pop(key, None)
        if made is None:
            made = asyncio.ensure_future(make())
        self._made[key] = made  # dicts keep their order: the newest answer is the last
        if len(self._made) > MOST_KEPT:
            del self._made[next(iter(self._made))]
        try:
            return await asyncio.shield(made)  # a client that disconnects must not cancel it for the others
        except BaseException:  # a failure is not kept; a cancelled client leaves a read under way to the others
            if made.done() and self._made.get(key) is made:
                del self._made[key]
            raise

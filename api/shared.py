"""Answers that many may want at a time, made once: history that takes a while to read from SQL."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import NamedTuple

MOST_KEPT = 32
"""answers, of some hundred kilobytes at most"""


class EncodedPage(NamedTuple):
    """A page of a list as it is sent."""

    body: bytes
    next: str | None
    """what the next page is asked for with; None: this is the last"""


class SharedAnswers:
    """The newest answers by what was asked. Who asks for one that is being made waits for it."""

    def __init__(self) -> None:
        self._made: dict[Hashable, asyncio.Future[EncodedPage]] = {}

    async def get(self, key: Hashable, make: Callable[[], Awaitable[EncodedPage]]) -> EncodedPage:
        """key: everything that the answer depends on, the cursor of what is read included."""
        made = self._made.pop(key, None)
        if made is None:
            made = asyncio.ensure_future(make())
        self._made[key] = made  # the newest is the last
        if len(self._made) > MOST_KEPT:
            del self._made[next(iter(self._made))]
        try:
            return await asyncio.shield(made)  # others may wait for it, too
        except BaseException:
            if made.done() and self._made.get(key) is made:
                del self._made[key]
            raise

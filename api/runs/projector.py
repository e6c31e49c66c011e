"""Reads a run's journal from its dispatcher, page by page, into SQL.

    1. ask the database how far it is  2. ask the dispatcher for what follows  3. write rows and cursor at once

Once the run has been stopped or is over, its dispatcher is gone, and what is left is read from the journal's files.

A crash, an outage or a repeated page between any two of these costs nothing: 1 is asked again. The dispatcher answers
from a thread of its own, so training does not wait for this.
"""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import structlog

from api.errors import ApiError
from api.runs.places import FEED_WORD, Place
from api.store.store import SqlStore
from dispatch.control.feed import FeedPage, Versioned
from dispatch.control.feed_client import read_feed
from dispatch.errors import CommandRefused, NoAnswer
from dispatch.journal.history import JOURNAL
from dispatch.journal.log import JournalTail, rest_of
from infra.errors import FreshetError
from infra.telemetry import DoublingPauses

POLL_SECONDS = 0.25
PAGE_RECORDS = 500
PAUSE_SECONDS = 1.0
"""after a failure"""
FEED_SECONDS = 5.0
"""how long the dispatcher may take to answer"""


class Projector:
    """Follows the journal of one run."""

    def __init__(self, store: SqlStore, place: Place) -> None:
        self._store, self._place = store, place
        self._cursor: int | None = None
        """how far the database is; None: it has to be asked"""
        self.projected = 0
        """version up to which SQL has the journal, as far as it is known here"""
        self.newest = 0
        """version of the journal, as far as it is known here"""
        self.changed = asyncio.Event()
        """set, and replaced by another, whenever rows were written"""
        self._has_ended = threading.Event()
        self._refusals = DoublingPauses()

    async def follow(self) -> None:
        """Projects until it is cancelled."""
        is_seen = False
        while True:
            try:
                if not is_seen:
                    place = self._place
                    await self._store.runs.see(place.name, str(place.folder), place.shown_settings(), place.topic())
                    is_seen = True
                await asyncio.sleep(POLL_SECONDS if not await self.advance() else 0)
            except (NoAnswer, CommandRefused) as error:
                self._log_unread(error)
                await self._finish_or_wait()
            except (FreshetError, OSError) as error:
                self._cursor = None
                log = structlog.get_logger()
                level = log.warning if isinstance(error, ApiError) else log.debug  # dispatchers come and go
                level("a run's journal is not projected now", run=self._place.name, reason=str(error))
                await asyncio.sleep(PAUSE_SECONDS)

    async def advance(self) -> bool:
        """Takes in one page; returns whether there is more."""
        endpoint = self._place.endpoint(FEED_WORD)
        if endpoint is None:
            return False
        if self._cursor is None:
            self._cursor = await self._store.runs.cursor(self._place.name)
        page = await asyncio.to_thread(self._read, endpoint, self._cursor)
        self.projected = self._cursor
        if page.next > self._cursor:
            self._cursor = self.projected = await self._store.runs.project(self._place.name, page)
            changed, self.changed = self.changed, asyncio.Event()
            changed.set()
        self.hear(page.newest)
        return page.next < page.newest

    def hear(self, version: int) -> None:
        """Somebody says that the journal has this version: what is read from now on is told with it, or a later one."""
        self.newest = max(self.newest, version)

    def _log_unread(self, error: NoAnswer | CommandRefused) -> None:
        """Dispatchers come and go; one that is there and refuses, as it does a cursor of another run, does so again."""
        if isinstance(error, NoAnswer):
            structlog.get_logger().debug("no dispatcher", run=self._place.name, reason=str(error))
        elif times := self._refusals.count_if_due(self._place.name):
            log = structlog.get_logger()
            log.warning("the dispatcher gives out no journal", run=self._place.name, reason=str(error), times=times)

    async def _finish_or_wait(self) -> None:
        """The dispatcher is away, for a while or for good."""
        try:
            await self.finish()
        except (FreshetError, OSError) as error:
            self._cursor = None
            structlog.get_logger().warning("a run's journal is not projected now", reason=str(error))
        await asyncio.sleep(PAUSE_SECONDS)

    def end(self) -> None:
        """Nobody follows any more: who asks the dispatcher, which may be gone for good, waits for no answer."""
        self._has_ended.set()

    async def finish(self) -> None:
        """Takes in what is left of the journal of a run that was stopped or is over; nothing of any other."""
        pages = read_rest(self._place.folder / JOURNAL, await self._store.runs.cursor(self._place.name))
        while (page := await asyncio.to_thread(next, pages, None)) is not None:
            await self._store.runs.project(self._place.name, page)
            self.newest, self._cursor = page.newest, page.next

    def _read(self, endpoint: str, cursor: int) -> FeedPage:
        place, reader = self._place, self._store.database.identity
        return read_feed(endpoint, place.name, cursor, place.curve(), FEED_SECONDS, reader, self._has_ended)


def read_rest(journal: Path, cursor: int) -> Iterator[FeedPage]:
    """What follows a version in the files of a journal that nobody writes any more."""
    rest = rest_of(journal)
    if rest is None or rest.version <= cursor:
        return
    newest = rest.version
    tail = JournalTail(journal, cursor)
    after, records = tail.version, list[Versioned]()
    for version, together in tail.read(newest):
        records += [Versioned(version, record) for record in together]
        if len(records) >= PAGE_RECORDS or version == newest:
            yield FeedPage(after, version, newest, tuple(records))
            after, records = version, []

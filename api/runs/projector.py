"""Reads a run's journal from its dispatcher, page by page, into the database.

    1. read the cursor from the database  2. ask the dispatcher for what follows  3. write rows and cursor together

A run that was started again from nothing under the same name has a new journal, recognised by its identity. That
journal is read from its beginning, and the rows of the earlier run are moved aside (``api/store/replaced.py``).

Once a run has been stopped or has ended, its dispatcher is gone; the rest is then read from the journal's files.

A crash, an outage or a repeated page between any two of these costs nothing, because 1 is repeated. The dispatcher
answers from a separate thread, so training does not wait for this.
"""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import structlog

from api.runs.places import Place
from api.store.rows import ProjectedJournal
from api.store.store import SqlStore
from dispatch.errors import CommandRefused, NoAnswer
from dispatch.feed.client import read_feed
from dispatch.feed.page import FeedPage, PlacedRecord, cursor_in
from dispatch.journal.history import JOURNAL
from dispatch.journal.log import JournalTail, identity_of, rest_of
from infra.base.errors import FreshetError
from infra.base.run_folder import FEED_WORD
from infra.base.telemetry import DoublingPauses
from infra.web.errors import HttpError

POLL_SECONDS = 0.25
PAGE_RECORDS = 500
PAUSE_SECONDS = 1.0
"""Pause after a failure."""
FEED_SECONDS = 5.0
"""How long the dispatcher may take to answer."""


class Projector:
    """Projects the journal of one run."""

    def __init__(self, store: SqlStore, place: Place) -> None:
        self._store = store
        self._place = place
        self._at: ProjectedJournal | None = None
        """How far the database has read; None: it has to be queried."""
        self.projected = 0
        """Cursor up to which the journal has been projected, as far as this process knows."""
        self.newest = 0
        """The end of the journal, as far as this process knows."""
        self.changed = asyncio.Event()
        """Set, and replaced by a new event, whenever rows were written."""
        self._has_ended = threading.Event()
        self._refusals = DoublingPauses()

    @property
    def identity(self) -> str:
        """Identity of the journal that the database has read; empty: not known."""
        return self._at.identity if self._at is not None else ""

    async def keep_projecting(self) -> None:
        """Projects until it is cancelled."""
        is_seen = False
        while True:
            try:
                if not is_seen:
                    await self._see()
                    is_seen = True
                await asyncio.sleep(POLL_SECONDS if not await self.advance() else 0)
            except (NoAnswer, CommandRefused) as error:
                self._log_unread(error)
                await self._finish_or_wait()
            except (FreshetError, OSError) as error:
                self._at = None
                log = structlog.get_logger()
                level = log.warning if isinstance(error, HttpError) else log.debug  # dispatchers come and go
                level("a run's journal is not projected now", run=self._place.name, reason=str(error))
                await asyncio.sleep(PAUSE_SECONDS)

    async def advance(self) -> bool:
        """Projects one page; returns whether there are more."""
        endpoint = self._place.endpoint(FEED_WORD)
        if endpoint is None:
            return False
        if self._at is None:
            self._at = await self._store.runs.projected(self._place.name)
        page = await asyncio.to_thread(self._read, endpoint, self._at)
        cursor = cursor_in(page.journal, page.newest, self._at.cursor, self._at.identity)
        self.projected = cursor
        if page.next > cursor or page.journal != self._at.identity:
            self._at = await self._take_in(page, self._at)
            changed, self.changed = self.changed, asyncio.Event()
            changed.set()
        self.hear(page.newest)
        return page.next < page.newest

    async def _take_in(self, page: FeedPage, before: ProjectedJournal) -> ProjectedJournal:
        """Writes a page; returns how far the database has read afterwards."""
        self.projected = await self._store.runs.project(self._place.name, page)
        at = ProjectedJournal(page.journal or before.identity, self.projected)
        if at.identity != before.identity:
            self.newest = page.newest
            await self._see()
        return at

    async def _see(self) -> None:
        place = self._place
        await self._store.runs.see(
            place.name, str(place.folder), place.shown_settings(), place.topic(), identity_of(place.folder / JOURNAL)
        )

    def hear(self, cursor: int) -> None:
        """Notes that the journal reaches at least this cursor; later answers name this cursor or a later one."""
        self.newest = max(self.newest, cursor)

    def _log_unread(self, error: NoAnswer | CommandRefused) -> None:
        """Logs why the journal could not be read.

        A missing dispatcher is usual. A dispatcher that refuses, for example a cursor of another run, will do so each
        time, so that warning is repeated at growing intervals only.
        """
        if isinstance(error, NoAnswer):
            structlog.get_logger().debug("no dispatcher", run=self._place.name, reason=str(error))
        elif times := self._refusals.count_if_due(self._place.name):
            log = structlog.get_logger()
            log.warning("the dispatcher gives out no journal", run=self._place.name, reason=str(error), times=times)

    async def _finish_or_wait(self) -> None:
        """The dispatcher does not answer: projects the rest of the journal if the run is over, and pauses."""
        try:
            await self.finish()
        except (FreshetError, OSError) as error:
            self._at = None
            structlog.get_logger().warning("a run's journal is not projected now", reason=str(error))
        await asyncio.sleep(PAUSE_SECONDS)

    def end(self) -> None:
        """Makes requests that are under way give up: the dispatcher may be gone for good."""
        self._has_ended.set()

    async def finish(self) -> None:
        """Projects the rest of the journal if the run was stopped or has ended; otherwise does nothing."""
        at = await self._store.runs.projected(self._place.name)
        pages = read_rest(self._place.folder / JOURNAL, at)
        while (page := await asyncio.to_thread(next, pages, None)) is not None:
            self._at = at = await self._take_in(page, at)
            self.newest = page.newest

    def _read(self, endpoint: str, at: ProjectedJournal) -> FeedPage:
        place = self._place
        reader = self._store.database.identity
        return read_feed(
            endpoint=endpoint,
            run=place.name,
            cursor=at.cursor,
            curve=place.curve(),
            timeout_seconds=FEED_SECONDS,
            reader=reader,
            given_up=self._has_ended,
            journal=at.identity,
        )


def read_rest(journal: Path, at: ProjectedJournal) -> Iterator[FeedPage]:
    """Pages with everything after a cursor, from the files of a journal that nobody writes to any more."""
    rest = rest_of(journal)
    identity = identity_of(journal)
    if rest is None:
        return
    newest = rest.cursor
    cursor = cursor_in(identity, newest, at.cursor, at.identity) if identity else at.cursor
    if newest <= cursor:
        return
    tail = JournalTail(journal, cursor)
    after = tail.cursor
    records = list[PlacedRecord]()
    for end, together in tail.read(newest):
        records += [PlacedRecord(end, record) for record in together]
        if len(records) >= PAGE_RECORDS or end == newest:
            yield FeedPage(after, end, newest, tuple(records), identity)
            after = end
            records = []

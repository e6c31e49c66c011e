"""Writes entries of the audit trail to SQL, many per transaction; ``rules`` decides which requests get one.

A request that changed something is answered once its entry is in the database, so every change that a client was told
of is there. While the database is unreachable, the answer waits for two seconds; the entry waits until the database is
back. A request that was refused changed nothing: it is answered at once, and its entry is written later.

Refused requests with a valid token all get an entry, as long as there is room in the queue. Of those without one, which
anybody can send, only some do; the others are counted, and one entry per minute says how many were left out.
"""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from time import monotonic

import structlog

from infra.web.errors import DatabaseAway
from infra.web.limits import Allowances
from infra.web.store.audit import AuditTrail
from infra.web.store.rows import NewAudit

RECORD_SECONDS = 2.0
"""How long an answer may wait for its entry."""
AGAIN_SECONDS = 1.0
"""Time between two attempts to reach the database."""
DRAIN_SECONDS = 5.0
"""How long entries are still written when the process ends."""
MOST_WAITING = 2000
"""Most waiting entries of requests that changed something."""
MOST_REFUSED = 1000
"""Most waiting entries of requests that were refused."""
MOST_AT_ONCE = 500
"""Most entries in one transaction."""
LEFT_OUT = "refused requests left out"
LEFT_OUT_SECONDS = 60.0
"""Time between two entries about requests that were left out."""
STRANGERS_PER_SECOND = 1.0
"""Refused requests without a token that get an entry; those of ``RATE_SECONDS`` may come at once."""


@dataclass(frozen=True)
class WaitingEntry:
    """An entry that is not in the database yet."""

    entry: NewAudit
    is_refused: bool
    written: asyncio.Future[None]


class AuditQueue:
    """Entries in order of arrival; one task writes them."""

    def __init__(self, trail: AuditTrail, clock: Callable[[], float] = monotonic) -> None:
        self._trail = trail
        self._clock = clock
        self._waiting: deque[WaitingEntry] = deque()
        self._refused = 0
        """Number of waiting entries of refused requests."""
        self._strangers = Allowances(STRANGERS_PER_SECOND, clock)
        self._left_out = 0
        self._told_left_out_at = -math.inf
        self._arrived = asyncio.Event()

    async def record(self, entry: NewAudit) -> None:
        """Returns once the entry is in the database, or after two seconds in which it could not be written."""
        if len(self._waiting) - self._refused >= MOST_WAITING:
            _warn("not audited: too many entries wait for the database", entry)
            return
        written = self._append(entry, is_refused=False)
        try:
            await asyncio.wait_for(asyncio.shield(written), RECORD_SECONDS)
        except TimeoutError:
            _warn("answered before it is audited: the database is away", entry)

    def note_refusal(self, entry: NewAudit) -> None:
        """Queues an entry about a refused request, or counts it as left out; returns at once."""
        is_wanted = entry.token is not None or self._strangers.spend("") == 0
        if is_wanted and self._refused < MOST_REFUSED:
            self._append(entry, is_refused=True)
        else:
            self._left_out += 1

    async def write(self) -> None:
        """Writes entries as they arrive, until it is cancelled."""
        while True:
            await self._arrived.wait()
            try:
                await self.flush()
            except DatabaseAway as error:
                structlog.get_logger().warning("audit entries wait", entries=len(self._waiting), reason=str(error))
                await asyncio.sleep(AGAIN_SECONDS)

    async def flush(self) -> None:
        """Writes all waiting entries; raises DatabaseAway, and those that are not written keep waiting."""
        while self._waiting:
            batch = list(islice(self._waiting, MOST_AT_ONCE))
            try:
                await self._trail.add(*(waiting.entry for waiting in batch))
            except DatabaseAway:
                raise
            except Exception:  # an entry that SQL does not accept must not hold up those after it
                lost = [waiting.entry.action for waiting in batch]
                structlog.get_logger().exception("audit entries are lost", actions=lost)
            for waiting in batch:
                self._waiting.popleft()
                self._refused -= waiting.is_refused
                if not waiting.written.done():
                    waiting.written.set_result(None)
            if self._clock() - self._told_left_out_at >= LEFT_OUT_SECONDS:
                self.tell_left_out()
        self._arrived.clear()

    def tell_left_out(self) -> None:
        """Adds an entry that says how many requests were left out."""
        if self._left_out:
            self._told_left_out_at = self._clock()
            self._append(NewAudit("", LEFT_OUT, 0, detail={"requests": self._left_out}), is_refused=True)
            self._left_out = 0

    def _append(self, entry: NewAudit, is_refused: bool) -> asyncio.Future[None]:
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(WaitingEntry(entry, is_refused, written))
        self._refused += is_refused
        self._arrived.set()
        return written


@asynccontextmanager
async def auditing(trail: AuditTrail) -> AsyncIterator[AuditQueue]:
    """Yields a queue with its writer; entries that wait at the end are still written if the database answers."""
    queue = AuditQueue(trail)
    writer = asyncio.create_task(queue.write())
    try:
        yield queue
    finally:
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)
        queue.tell_left_out()
        try:
            await asyncio.wait_for(queue.flush(), DRAIN_SECONDS)
        except (DatabaseAway, TimeoutError) as error:
            structlog.get_logger().warning("audit entries are lost", reason=str(error))


def _warn(what: str, entry: NewAudit) -> None:
    structlog.get_logger().warning(what, actor=entry.actor, action=entry.action, status=entry.status)

"""Serves the journal to readers, on its own thread, so that readers and decisions never wait for each other.

Servers of the model use it, too: they report what they serve, hear of new snapshots (``Audience``), and answer
questions (``Questions``).

Only durable records are sent. A reader that has everything waits for the next record, a second at most, and delays
nobody. When a named reader asks for a cursor, it has stored everything up to it: once all readers have, the journal may
drop those records (``RunJournal.trim``).
"""

import os
import threading
from contextlib import suppress
from time import monotonic
from typing import NamedTuple

import msgspec
import numpy as np
import structlog

from dispatch.commands.server import Asked, ControlSocket
from dispatch.feed.audience import Audience
from dispatch.feed.page import cursor_in
from dispatch.feed.protocol import (
    NO_QUESTION,
    JournalPage,
    Live,
    Newest,
    PageArrays,
    ReadJournal,
    Scores,
)
from dispatch.journal.log import JournalTail, SegmentGone
from dispatch.journal.records import AnyRecord, StepDecided
from dispatch.journal.run import RunJournal
from infra.base.errors import FreshetError

HOLD_SECONDS = 1.0
"""How long a reader that has everything is held, waiting for more."""
LOOK_SECONDS = 0.02
"""Time between two checks of the journal while somebody waits for it."""
IDLE_SECONDS = 60.0
MOST_WAITING = 1000
"""Most readers that wait; further ones are answered at once."""
PAGE_RECORDS = 500
PAGE_BYTES = 256 << 10
KEPT_PLACES = 32
"""Read positions that are remembered, so that a reader that continues need not be looked up."""


class WaitingReader(NamedTuple):
    """A reader that has not been answered."""

    asked: Asked
    until: float
    """When its wait ends, by the monotonic clock."""


class FeedServer:
    """The thread that answers readers of the journal."""

    def __init__(self, socket: ControlSocket, journal: RunJournal, audience: Audience | None = None) -> None:
        """socket: from now on only this thread uses it."""
        self._socket = socket
        self._journal = journal
        self._audience = audience or Audience()
        self._waiting: list[WaitingReader] = []
        self._places: dict[int, JournalTail] = {}
        """Open positions in the journal, by the cursor up to which each has been read."""
        self._encoder = msgspec.msgpack.Encoder()
        self._ended, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._serve, name="feed", daemon=True)
        self._thread.start()

    def close(self) -> None:
        os.close(self._wake)
        self._thread.join()
        os.close(self._ended)

    def _serve(self) -> None:
        try:
            while not self._socket.wait(LOOK_SECONDS if self._waiting else IDLE_SECONDS, self._ended):
                while (asked := self._socket.next()) is not None:
                    if isinstance(asked.message, Scores):
                        self._take_scores(asked)
                        continue
                    if isinstance(asked.message, Live):
                        self._audience.hear(asked.message)
                    held = 0.0 if len(self._waiting) >= MOST_WAITING else HOLD_SECONDS
                    self._waiting.append(WaitingReader(asked, monotonic() + held))
                self._waiting = [waiting for waiting in self._waiting if not self._is_answered(waiting)]
        finally:
            self._socket.close()

    def _is_answered(self, waiting: WaitingReader) -> bool:
        """Answers a reader or a server if there is news or it has waited long enough; returns whether it did."""
        if isinstance(waiting.asked.message, Live):
            return self._is_told(waiting)
        asked: ReadJournal = waiting.asked.message
        newest = self._journal.cursor
        cursor = cursor_in(self._journal.identity, newest, asked.cursor, known=asked.journal)
        if cursor == newest and monotonic() < waiting.until:
            return False
        try:
            self._answer(waiting.asked, cursor, newest)
        except FreshetError as error:
            structlog.get_logger().warning("the journal cannot be read for others", reason=str(error))
            self._socket.refuse(waiting.asked, str(error), self._journal.generation)
        return True

    def _is_told(self, waiting: WaitingReader) -> bool:
        """Sends a server the newest snapshot if it does not know it, has to answer, or has waited long enough."""
        live: Live = waiting.asked.message
        question = self._audience.questions.take_question(live)
        if question is None and not self._audience.has_news(live) and monotonic() < waiting.until:
            return False
        newest = self._audience.newest
        publishers = self._audience.publishers
        answer = Newest(
            run=live.run,
            generation=self._journal.generation,
            step=newest.step,
            checkpoint=newest.checkpoint,
            timeline=newest.timeline,
            publishers=publishers,
            question=0 if question is None else question.number,
            samples=0 if question is None else question.samples,
        )
        self._socket.answer(waiting.asked, answer, NO_QUESTION if question is None else question.arrays)
        return True

    def _take_scores(self, asked: Asked) -> None:
        reason = self._audience.questions.answer(asked.message, asked.arrays.probabilities)
        if reason is not None:
            self._socket.refuse(asked, reason, self._journal.generation)

    def _answer(self, asked: Asked, cursor: int, newest: int) -> None:
        if cursor > newest:
            reason = (
                f"cursor {cursor} is not in the journal, which ends at cursor {newest}; expected one that was handed "
                "out before; the run's folder was put back to an earlier state: give the run another name, or its API "
                "another database"
            )
            self._socket.refuse(asked, reason, self._journal.generation)
            return
        self._journal.readers.note(asked.message.reader, cursor)
        place = self._find(cursor)
        after = place.cursor
        records = list[bytes]()
        with suppress(SegmentGone):  # the segment was dropped meanwhile: the next request finds what is left
            self._fill(records, place, newest)
            self._places[place.cursor] = place
        at = {"run": asked.message.run, "generation": self._journal.generation, "step": -1}
        page = JournalPage(
            **at,
            after=after,
            next=place.cursor,
            newest=newest,
            records=len(records),
            journal=self._journal.identity,
        )
        self._socket.answer(asked, page, PageArrays(np.frombuffer(b"".join(records), np.uint8)))

    def _find(self, cursor: int) -> JournalTail:
        if (place := self._places.pop(cursor, None)) is not None:
            return place
        while len(self._places) >= KEPT_PLACES:
            self._places.pop(next(iter(self._places)))
        return JournalTail(self._journal.own_folder, cursor)

    def _fill(self, page: list[bytes], place: JournalTail, newest: int) -> None:
        """Adds the records that follow a position, each encoded with its cursor."""
        size = 0
        for cursor, records in place.read(newest):
            for record in records:
                page.append(self._encoder.encode((cursor, stripped(record))))
                size += len(page[-1])
            if len(page) >= PAGE_RECORDS or size >= PAGE_BYTES:
                return


def stripped(record: AnyRecord) -> AnyRecord:
    """Returns a record without the parts that only a replay needs."""
    if isinstance(record, StepDecided):
        return msgspec.structs.replace(record, assignment=b"", hot=None)
    return record

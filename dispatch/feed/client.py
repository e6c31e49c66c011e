"""Reads a journal over the wire, page after page."""

import threading

import msgspec

from dispatch.commands.client import TIMEOUT_SECONDS, request
from dispatch.feed.page import FeedPage, PlacedRecord
from dispatch.feed.protocol import FEED, JournalPage, ReadJournal
from dispatch.journal.records import AnyRecord
from infra.base.errors import WireError
from infra.base.wire import Curve

MOST_PAGE_BYTES = 64 << 20
"""a page ends with a whole frame of the journal, however long that is"""
AGAIN_SECONDS = 2.0
"""longer than a reader that has everything is kept waiting"""

_decoder = msgspec.msgpack.Decoder(list[tuple[int, AnyRecord]])


def read_feed(
    endpoint: str,
    run: str,
    cursor: int,
    curve: Curve | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
    reader: str = "",
    given_up: threading.Event | None = None,
    journal: str = "",
) -> FeedPage:
    """The records that follow a cursor; empty if there is none within a second.

    reader: a name under which everything up to the cursor is kept; the journal keeps the rest for it. given_up: set by
    who needs no answer any more. journal: which one the cursor is of; empty: not known. Raises CommandRefused with the
    dispatcher's reason, NoAnswer, or WireError for a page that cannot be read.
    """
    asked = ReadJournal(run=run, generation=-1, step=-1, cursor=cursor, reader=reader, journal=journal)
    page, arrays = request(endpoint, asked, FEED, curve, timeout_seconds, AGAIN_SECONDS, MOST_PAGE_BYTES, given_up)
    assert isinstance(page, JournalPage)
    try:
        found = _decoder.decode(_as_list(page.records, arrays.records.tobytes()))
    except msgspec.DecodeError as error:
        raise WireError(
            f"a page of the journal of run {run!r} cannot be read: {error}; expected the records of one version of "
            "Freshet; run one version in all processes"
        ) from error
    return FeedPage(page.after, page.next, page.newest, tuple(PlacedRecord(*each) for each in found), page.journal)


def _as_list(count: int, content: bytes) -> bytes:
    """Values one after the other as one list of MessagePack."""
    return b"\xdd" + count.to_bytes(4, "big") + content

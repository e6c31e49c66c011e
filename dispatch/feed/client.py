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
"""Largest page: a page ends with a whole frame of the journal, however long that is."""
AGAIN_SECONDS = 2.0
"""Time after which a request is repeated; longer than the server holds a reader that is up to date."""

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
    """Reads the records that follow a cursor; none if there are none within a second.

    reader: name under which everything up to the cursor is stored; the journal keeps the rest for it. given_up: an
    event that the caller sets when it no longer needs an answer. journal: identity of the journal that the cursor
    belongs to; empty if not known. Raises CommandRefused with the dispatcher's reason, NoAnswer, or WireError for a
    page that cannot be read.
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
    """Turns concatenated MessagePack values into one MessagePack list."""
    return b"\xdd" + count.to_bytes(4, "big") + content

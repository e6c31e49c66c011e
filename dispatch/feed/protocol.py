"""Messages between a running dispatcher and the readers of its journal or the servers of its model."""

from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from dispatch.commands.protocol import Exchange
from dispatch.protocol import MOST_SHARDS
from infra.base.wire import F32, NO_F32, NO_U64, U64, Header, Name, Number, Refused

U8 = Annotated[NDArray[np.uint8], "u1"]


class PageArrays(NamedTuple):
    """Records of a journal."""

    records: U8
    """Pairs of cursor and record in MessagePack, one after the other."""


class QuestionArrays(NamedTuple):
    """Samples for a server to score, one after the other."""

    keys: U64
    dense: F32
    shares: F32 = NO_F32
    """Shares of the values of pooled tables."""


class ScoreArrays(NamedTuple):
    """Predictions of a server for the samples of a question."""

    probabilities: F32
    """Click probability of each sample."""


# ── readers and servers → dispatcher ──────────────────────────────────────────────────────────────────────────────────
class ReadJournal(Header, frozen=True):
    """Asks for the records that follow a cursor; generation and step are -1."""

    cursor: Number
    """The reader has stored everything up to this cursor."""
    reader: Name = ""
    """Name of the reader, which stays the same across restarts; empty for a reader that stores nothing."""
    journal: Name = ""
    """Identity of the journal that the cursor belongs to; empty if the reader does not know it."""


class Live(Header, frozen=True):
    """A server reports which snapshot it serves, about once a second; step: that of the snapshot, -1 if it has none.

    Answered by Newest: at once if there is a snapshot that the server does not know, otherwise within a second.
    """

    timeline: Number
    checkpoint: Number
    """Number of the served checkpoint; 0 if none."""
    at_seconds: Annotated[float, Meta(ge=0, le=1e11)]
    """When it was first served, in seconds since 1970."""
    name: Name
    """Name of the server."""
    known: Number = 0
    """The newest checkpoint that the server has heard of, served or not."""
    can_score: bool = False
    """Whether it answers questions that come with Newest."""


class Scores(Header, frozen=True):
    """A server's answer to a question; step: that of the snapshot that scored the samples. It is not answered."""

    ARRAYS = ScoreArrays

    question: Number
    timeline: Number
    checkpoint: Number
    name: Name
    """Name of the server."""


# ── dispatcher → readers and servers ──────────────────────────────────────────────────────────────────────────────────
class JournalPage(Header, frozen=True):
    """The answer to ReadJournal; see ``FeedPage``."""

    ARRAYS = PageArrays

    after: Number
    next: Number
    newest: Number
    records: Annotated[int, Meta(ge=0, lt=1 << 32)]
    """Number of records."""
    journal: Name
    """Identity of the journal."""


class Newest(Header, frozen=True):
    """The answer to Live: the newest snapshot that exists; step: that of the snapshot.

    It may contain a question: samples for the server to score with the snapshot that it serves (``Scores``).
    """

    ARRAYS = QuestionArrays

    checkpoint: Number
    """Number of its checkpoint, whose manifest is in the storage of checkpoints. 0: none has been announced; the
    storage may still have older ones.
    """
    timeline: Number
    publishers: Annotated[tuple[Name, ...], Meta(max_length=MOST_SHARDS)] = ()
    """Addresses at which the shards publish checkpoint files as they write them."""
    question: Number = 0
    """Number of the question; 0 if there is none."""
    samples: Annotated[int, Meta(ge=0, lt=1 << 20)] = 0
    """Number of samples in the question."""


NO_QUESTION = QuestionArrays(NO_U64, NO_F32)
MOST_QUESTION_BYTES = 64 << 20
"""Size of the largest array."""
FEED = Exchange((ReadJournal, Live, Scores), (JournalPage, Newest, Refused))

"""The messages between a running dispatcher and whoever reads its journal, or serves its model."""

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
    """MessagePack: pairs of cursor and record, one after the other"""


class QuestionArrays(NamedTuple):
    """Samples for a server to score, one after the other."""

    keys: U64
    dense: F32


class ScoreArrays(NamedTuple):
    """What a server makes of them."""

    probabilities: F32
    """of a click"""


# ── readers and servers → dispatcher ──────────────────────────────────────────────────────────────────────────────────
class ReadJournal(Header, frozen=True):
    """Asks for what follows a cursor; generation and step are -1."""

    cursor: Number
    """everything up to it is kept where the reader is"""
    reader: Name = ""
    """who asks, by a name that outlives its process; empty: nobody that keeps anything"""
    journal: Name = ""
    """which one the cursor is of, by its identity; empty: the reader does not know"""


class Live(Header, frozen=True):
    """A server says which snapshot it serves, about once a second; step: of that snapshot, -1 if it has none.

    Answered by Newest: at once if there is a snapshot that the server does not know, else within a second.
    """

    timeline: Number
    checkpoint: Number
    """0: none"""
    at_seconds: Annotated[float, Meta(ge=0, le=1e11)]
    """since 1970, when it was first served"""
    name: Name
    """of the server"""
    known: Number = 0
    """the newest checkpoint that it has heard of, served or not"""
    can_score: bool = False
    """whether it answers questions that come with Newest"""


class Scores(Header, frozen=True):
    """A server's answer to a question; step: of the snapshot that scored the samples. It is not answered."""

    ARRAYS = ScoreArrays

    question: Number
    timeline: Number
    checkpoint: Number
    name: Name
    """of the server"""


# ── dispatcher → readers and servers ──────────────────────────────────────────────────────────────────────────────────
class JournalPage(Header, frozen=True):
    """The answer to ReadJournal; see ``FeedPage``."""

    ARRAYS = PageArrays

    after: Number
    next: Number
    newest: Number
    records: Annotated[int, Meta(ge=0, lt=1 << 32)]
    """how many there are"""
    journal: Name
    """its identity"""


class Newest(Header, frozen=True):
    """The newest snapshot there is; step: of that snapshot. The answer to Live.

    It may come with a question: samples that the server is to score with the snapshot that it serves (``Scores``).
    """

    ARRAYS = QuestionArrays

    checkpoint: Number
    """its manifest is in the storage of checkpoints; 0: none has been announced, and the storage may have older ones"""
    timeline: Number
    publishers: Annotated[tuple[Name, ...], Meta(max_length=MOST_SHARDS)] = ()
    """where the shards publish the files of checkpoints as they write them"""
    question: Number = 0
    """0: none"""
    samples: Annotated[int, Meta(ge=0, lt=1 << 20)] = 0
    """of the question"""


NO_QUESTION = QuestionArrays(NO_U64, NO_F32)
MOST_QUESTION_BYTES = 64 << 20
"""of one array"""
FEED = Exchange((ReadJournal, Live, Scores), (JournalPage, Newest, Refused))

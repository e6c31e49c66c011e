"""The messages between a running dispatcher and whoever operates it, or serves its model.

A command has an id that its sender chooses. It is sent again with the same id until it is answered, so whoever carries
it out does so once for each id.
"""

from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from dispatch.errors import CommandRefused
from dispatch.protocol import MOST_SHARDS, Gbit
from infra.base.wire import F32, NO_F32, NO_U64, REASON_CHARACTERS, U64, Header, Name, Number, Refused, Step
from ps.phases import MOST_WORKERS

U8 = Annotated[NDArray[np.uint8], "u1"]
MOST_LISTED = 4 * MOST_WORKERS
"""of a list: members, those that wait for the next generation, and those that leave"""

Verb = Literal[
    "drain",
    "remove",
    "pause",
    "resume",
    "list",
    "checkpoint",
    "stop",
    "alpha",
    "policy",
    "deadline",
    "skip_above",
    "link",
    "shares",
]
MemberStanding = Literal["waiting", "training", "parked", "draining", "lost"]
"""waiting: it has joined, and the next generation will have it"""
MemberNumber = Annotated[int, Meta(ge=-1, lt=MOST_WORKERS)]
"""-1: in no generation"""


class PageArrays(NamedTuple):
    """Records of a journal."""

    records: U8
    """MessagePack: pairs of version and record, one after the other"""


class QuestionArrays(NamedTuple):
    """Samples for a server to score, one after the other."""

    keys: U64
    dense: F32


class ScoreArrays(NamedTuple):
    """What a server makes of them."""

    probabilities: F32
    """of a click"""


class Exchange(NamedTuple):
    """What may be asked over one socket, and what may be answered."""

    requests: tuple[type[Header], ...]
    answers: tuple[type[Header], ...]


# ── operator → dispatcher ─────────────────────────────────────────────────────────────────────────────────────────────
class Command(Header, frozen=True):
    """One thing to do; generation and step are -1."""

    id: Name
    """one id, one effect, however often it arrives"""
    verb: Verb
    """drain: the worker leaves after a checkpoint; remove: it is fenced off at once, and the others recover; pause and
    resume: no new batch until then; list: who takes part; checkpoint: save the model now; stop: end in order, to be
    resumed; the others set a value"""
    worker: Name = ""
    """of drain, remove, link and shares"""
    value: Name = ""
    """alpha: a share from 0 to 1, or auto; policy: as dispatch.policy; deadline: true or false; skip_above: a number of
    events, or none; link: Gbit/s, 0 if it is not known; shares: LEAST:LARGEST in equal shares of the batch"""
    actor: Name = ""
    """who gives it, for the record"""
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS)] = ""
    """why, for the record"""
    expected: Step = -1
    """version of the journal that it was given on; refused if a command or a change of α came after it; -1: any"""
    given_seconds: Annotated[float, Meta(ge=0, le=1e11)] = 0.0
    """since 1970; refused if the run was stopped after that; 0: now"""


class ReadJournal(Header, frozen=True):
    """Asks for what follows a version of the journal; generation and step are -1."""

    cursor: Number
    """everything up to it is kept where the reader is"""
    reader: Name = ""
    """who asks, by a name that outlives its process; empty: nobody that keeps anything"""
    journal: Name = ""
    """which one the cursor is of, by its identity; empty: the reader does not know"""


class Live(Header, frozen=True):
    """A server says which version it serves, about once a second; step: of that version, -1 if it has none.

    Answered by Newest: at once if there is a version that the server does not know, else within a second.
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
    """A server's answer to a question; step: of the version that it scored the samples with. It is not answered."""

    ARRAYS = ScoreArrays

    question: Number
    timeline: Number
    checkpoint: Number
    name: Name
    """of the server"""


# ── dispatcher → operator ─────────────────────────────────────────────────────────────────────────────────────────────
class Accepted(Header, frozen=True):
    """A command was carried out, or will be with the step named here."""

    id: Name
    text: Annotated[str, Meta(max_length=REASON_CHARACTERS)]
    """what has happened, for people"""
    version: Number
    """of the journal, with the command in it"""


class Outdated(Header, frozen=True):
    """A command was given on a version of the journal after which another came; it was not carried out."""

    id: Name
    version: Step
    """the newest"""


class ListedMember(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One worker as the dispatcher knows it."""

    name: Name
    state: MemberStanding
    number: MemberNumber
    link_gbit: Gbit
    """0: not known"""


class Members(Header, frozen=True):
    """The answer to list."""

    id: Name
    is_paused: bool
    members: Annotated[tuple[ListedMember, ...], Meta(max_length=MOST_LISTED)]


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
    """The newest version there is; step: of that version. The answer to Live.

    It may come with a question: samples that the server is to score with the version that it serves (``Scores``).
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
CONTROL = Exchange((Command,), (Accepted, Outdated, Members, Refused))
FEED = Exchange((ReadJournal, Live, Scores), (JournalPage, Newest, Refused))


def check_given(given_seconds: float, stopped_seconds: float) -> None:
    """Raises CommandRefused if a command was given before the run was stopped; both since 1970, 0: now, and never."""
    if 0 < given_seconds <= stopped_seconds:
        raise CommandRefused(
            "the command was given before the run was stopped, and it has been resumed since; expected one to the run "
            "as it is; look again, and give it anew"
        )

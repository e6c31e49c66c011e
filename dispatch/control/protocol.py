"""The messages between a running dispatcher and whoever operates it: the command line, the control plane.

A command has an id that its sender chooses. It is sent again with the same id until it is answered, so whoever carries
it out does so once for each id.
"""

from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from dispatch.protocol import Gbit
from infra.wire import REASON_CHARACTERS, Header, Name, Refused
from ps.protocol import MOST_WORKERS

MOST_LISTED = 4 * MOST_WORKERS
"""of a list: members, those that wait for the next generation, and those that leave"""

Verb = Literal["drain", "remove", "pause", "resume", "list", "cut"]
MemberStanding = Literal["waiting", "training", "parked", "draining", "lost"]
"""waiting: it has joined, and the next generation will have it"""
MemberNumber = Annotated[int, Meta(ge=-1, lt=MOST_WORKERS)]
"""-1: in no generation"""


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
    """drain: the worker leaves after a cut; remove: it is fenced off at once, and the others recover; pause and resume:
    no new batch until then; list: who takes part; cut: save the model now"""
    worker: Name = ""
    """of drain and remove"""


# ── dispatcher → operator ─────────────────────────────────────────────────────────────────────────────────────────────
class Accepted(Header, frozen=True):
    """A command was carried out, or will be with the step named here."""

    id: Name
    text: Annotated[str, Meta(max_length=REASON_CHARACTERS)]
    """what has happened, for people"""


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


CONTROL = Exchange((Command,), (Accepted, Members, Refused))

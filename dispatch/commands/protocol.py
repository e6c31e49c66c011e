"""The messages between a running dispatcher and whoever operates it.

A command has an id that its sender chooses. It is sent again with the same id until it is answered, so whoever carries
it out does so once for each id. Which commands there are is for the dispatcher to say
(``dispatch/commands/registry.py``): one that it does not know is refused.
"""

from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from dispatch.errors import CommandRefused
from dispatch.protocol import Gbit
from infra.base.wire import REASON_CHARACTERS, Header, Name, Number, Refused, Step
from ps.phases import MOST_WORKERS

MOST_LISTED = 4 * MOST_WORKERS
"""of a list: members, those that wait for the next generation, and those that leave"""
Outcome = Literal["accepted", "refused", "outdated"]
"""accepted: it has been carried out; refused: it cannot be; outdated: others came after the cursor it was given at"""
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
    verb: Name
    """name of a command"""
    worker: Name = ""
    """that it is about; empty: it is about none"""
    value: Name = ""
    """what it sets, as its command writes it; empty: nothing"""
    actor: Name = ""
    """who gives it, for the record"""
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS)] = ""
    """why, for the record"""
    expected: Step = -1
    """cursor that it was given at; outdated if a command or a change of α came after it; -1: any"""
    given_seconds: Annotated[float, Meta(ge=0, le=1e11)] = 0.0
    """since 1970; refused if the run was stopped after that; 0: now"""


class ListMembers(Header, frozen=True):
    """Asks who takes part; a question, which changes nothing and is not on record."""


# ── dispatcher → operator ─────────────────────────────────────────────────────────────────────────────────────────────
class CommandAnswered(Header, frozen=True):
    """What became of a command; step: the newest one then."""

    id: Name
    outcome: Outcome
    text: Annotated[str, Meta(max_length=REASON_CHARACTERS)]
    """what has happened, or why nothing has; for people"""
    cursor: Number
    """of the command in the journal if it was accepted, else the end of the journal"""


class ListedMember(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One worker as the dispatcher knows it."""

    name: Name
    state: MemberStanding
    number: MemberNumber
    link_gbit: Gbit
    """0: not known"""


class Members(Header, frozen=True):
    """The answer to ListMembers."""

    is_paused: bool
    members: Annotated[tuple[ListedMember, ...], Meta(max_length=MOST_LISTED)]


CONTROL = Exchange((Command, ListMembers), (CommandAnswered, Members, Refused))
"""Refused: the message cannot be read, or is meant for another run"""


def check_given(given_seconds: float, stopped_seconds: float) -> None:
    """Raises CommandRefused if a command was given before the run was stopped; both since 1970, 0: now, and never."""
    if 0 < given_seconds <= stopped_seconds:
        raise CommandRefused(
            "the command was given before the run was stopped, and it has been resumed since; expected one to the run "
            "as it is; look again, and give it anew"
        )

"""Messages between a running dispatcher and its operators.

The sender of a command chooses its id and sends it again with the same id until it is answered; the receiver carries
out each id once. The dispatcher defines which commands exist (``dispatch/commands/registry.py``) and refuses unknown
ones.
"""

from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from dispatch.errors import CommandRefused
from dispatch.protocol import Gbit
from infra.base.wire import REASON_CHARACTERS, Header, Name, Number, Refused, Step
from ps.phases import MOST_WORKERS

MOST_LISTED = 4 * MOST_WORKERS
"""Most entries in a list of members, including those that wait for the next generation and those that leave."""
Outcome = Literal["accepted", "refused", "outdated"]
"""What became of a command: carried out, impossible, or given at a cursor after which another command came."""
MemberStanding = Literal["waiting", "training", "parked", "draining", "lost"]
"""The state of a worker; one that is waiting has joined and will be in the next generation."""
MemberNumber = Annotated[int, Meta(ge=-1, lt=MOST_WORKERS)]
"""Number of a member; -1 if it is in no generation."""


class Exchange(NamedTuple):
    """The types of requests and answers that are allowed on one socket."""

    requests: tuple[type[Header], ...]
    answers: tuple[type[Header], ...]


# ── operator → dispatcher ─────────────────────────────────────────────────────────────────────────────────────────────
class Command(Header, frozen=True):
    """One command; generation and step are -1."""

    id: Name
    """Id of the command; it has one effect, however often it arrives."""
    verb: Name
    """Name of the command."""
    worker: Name = ""
    """The worker that the command is about; empty if none."""
    value: Name = ""
    """The value that it sets, in the text form of its command; empty if none."""
    actor: Name = ""
    """Who gives it, for the record."""
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS)] = ""
    """The reason for it, for the record."""
    expected: Step = -1
    """Cursor at which it was given; it is outdated if a command or a change of α came after it. -1: never outdated."""
    given_seconds: Annotated[float, Meta(ge=0, le=1e11)] = 0.0
    """When it was given, in seconds since 1970; refused if the run was stopped after that. 0: now."""


class ListMembers(Header, frozen=True):
    """Asks which workers take part; it changes nothing and is not recorded."""


# ── dispatcher → operator ─────────────────────────────────────────────────────────────────────────────────────────────
class CommandAnswered(Header, frozen=True):
    """The answer to a command; step: the newest step at that time."""

    id: Name
    outcome: Outcome
    text: Annotated[str, Meta(max_length=REASON_CHARACTERS)]
    """What has happened, or why nothing has; for people."""
    cursor: Number
    """Cursor of the command in the journal if it was accepted, otherwise the end of the journal."""


class ListedMember(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One worker as the dispatcher knows it."""

    name: Name
    state: MemberStanding
    number: MemberNumber
    link_gbit: Gbit
    """Speed of its link; 0 if not known."""
    uplink_gbit: Gbit = 0.0
    """Speed of its uplink; 0: as fast as its link."""


class Members(Header, frozen=True):
    """The answer to ListMembers."""

    is_paused: bool
    members: Annotated[tuple[ListedMember, ...], Meta(max_length=MOST_LISTED)]


CONTROL = Exchange((Command, ListMembers), (CommandAnswered, Members, Refused))
"""Refused is the answer to a message that cannot be read or is meant for another run."""


def check_given(given_seconds: float, stopped_seconds: float) -> None:
    """Raises CommandRefused if a command was given before the run was stopped.

    Both times are seconds since 1970; given_seconds 0: now; stopped_seconds 0: never stopped.
    """
    if 0 < given_seconds <= stopped_seconds:
        raise CommandRefused(
            "the command was given before the run was stopped, and it has been resumed since; expected one to the run "
            "as it is; look again, and give it anew"
        )

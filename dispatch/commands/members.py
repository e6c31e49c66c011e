"""Answers the one request that is not a command: which workers take part."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from dispatch.commands.desired import Desired
from dispatch.commands.protocol import ListedMember, Members, MemberStanding
from dispatch.peers.roster import Member

if TYPE_CHECKING:  # importing it loads kernels
    from dispatch.peers.crew import Crew


def list_members(crew: "Crew", desired: Desired, parked: Collection[str]) -> Members:
    """Lists everyone who has joined.

    desired: the desired state of the run. parked: names of the workers without samples.
    """
    roster = crew.roster
    everyone = {member.name: member for member in (*roster.members, *roster.everyone)}
    listed = tuple(_listed(crew, desired, parked, member) for member in everyone.values())
    return Members(**crew.at(0), is_paused=desired.is_paused, members=listed)


def _listed(crew: "Crew", desired: Desired, parked: Collection[str], member: Member) -> ListedMember:
    roster = crew.roster
    number = roster.members.index(member) if member in roster.members else -1
    standing: MemberStanding = "training" if number >= 0 else "waiting"
    if roster.is_leaving(member.name):
        standing = "draining"
    elif member.name in crew.losses:
        standing = "lost"
    elif member.name in parked:
        standing = "parked"
    link = desired.link_of(member.name) or member.link
    return ListedMember(
        name=member.name, state=standing, number=number, link_gbit=link.down, uplink_gbit=link.own_uplink
    )

"""Who works for a run: candidates, those who are ready, the members of the current generation, and who wants to leave.

A worker that joins is a candidate first. It is asked to confirm, and counts only when it has: a generation waits for
every one of its members, so a process that cannot answer must never become one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from time import monotonic

from dispatch.protocol import Join, unencrypted
from infra.base.agreement import differing
from infra.base.link_gbit import LinkGbit
from infra.base.process import NOWHERE, ProcessPlace
from ps.phases import MOST_WORKERS

CONFIRM_SECONDS = 30.0
"""How long a worker that joins may take to confirm; a running one does so at once."""


@dataclass(frozen=True)
class Member:
    """A worker that has joined."""

    name: str
    identity: bytes
    """Routing id of its socket, which identifies the process, whatever its name."""
    link_gbit: float
    """Speed of its link; 0: not known."""
    device: str = ""
    """Its own device for NCCL; empty: none."""
    arithmetic: str = ""
    """What its results depend on besides its orders."""
    place: ProcessPlace = NOWHERE
    """Where its process runs."""
    uplink_gbit: float = 0.0
    """Speed of its uplink; 0: as fast as its link."""

    @property
    def link(self) -> LinkGbit:
        """Speed of its link in either direction."""
        return LinkGbit.of(self.link_gbit, self.uplink_gbit)


class Roster:
    """Workers by name. Their number may change from one generation to the next."""

    def __init__(self, settings: Mapping[str, str], may_sum: bool) -> None:
        """settings: those that a worker must share; may_sum: whether there may be several workers, which may have to
        sum gradients among themselves.
        """
        self._settings = settings
        self._may_sum = may_sum
        self._candidates: dict[str, tuple[Member, float]] = {}
        self._ready: dict[str, Member] = {}
        self._leaving: set[str] = set()
        """Workers that asked to leave, or are to leave."""
        self._removed: set[str] = set()
        self._newest: dict[str, bytes] = {}
        """Identity of the last accepted process of each name."""
        self.replaced: set[bytes] = set()
        """Identities of those before it: one that was stopped may offer itself again when it continues."""
        self.to_drain: frozenset[str] = frozenset()
        """Workers whose drain was recorded before this dispatcher started: they leave once they have joined."""
        self.members: tuple[Member, ...] = ()
        """Members of the current generation, by number."""
        self.displaced: list[Member] = []
        """Workers whose name a newer process has taken over; the code that notifies them empties it."""
        self.most: int | None = None
        """Most workers in the next generation; the others wait for a later one. None: all."""
        self.is_replaying = False
        """Whether workers that leave are still needed, for steps that they have trained."""

    @property
    def wanted(self) -> tuple[Member, ...]:
        """Who should be in the next generation: as many as allowed of those who could."""
        return self.able[: self.most]

    @property
    def able(self) -> tuple[Member, ...]:
        """Who could be in the next generation: those who stay, in their order, then newcomers by name.

        In a ring the first of them has the dense weights, and gives them to the others. So if every member leaves at
        once, they stay for one more generation to hand over to the newcomers, if there are any.
        """
        leaving = set() if self.is_replaying else self._leaving
        staying = [m for m in self.members if self._ready.get(m.name) == m and m.name not in leaving]
        names = {member.name for member in self.members} | leaving
        newcomers = [self._ready[name] for name in sorted(self._ready.keys() - names, key=by_number)]
        return (*(staying or (self.members if newcomers else ())), *newcomers)

    @property
    def everyone(self) -> tuple[Member, ...]:
        """Who has joined and not been released: members, those who wait for their first generation, candidates."""
        return (*self._ready.values(), *(candidate for candidate, _ in self._candidates.values()))

    @property
    def has_changed(self) -> bool:
        """Whether a worker has joined or asked to leave since this generation started."""
        return self.wanted != self.members

    def holder(self, sender: bytes, join: Join) -> bytes | None:
        """The process that holds the name under which another offers itself; None: nobody, or the other is refused
        anyway.
        """
        known = next((member.identity for member in self.everyone if member.name == join.worker), None)
        is_refused = self._refusal(sender, join, others=len(self.everyone) - 1) is not None
        return None if known == sender or is_refused else known

    def admit(self, sender: bytes, join: Join) -> str | None:
        """Makes a worker a candidate; returns the reason if it is refused."""
        known = {member.name: member for member in self.everyone}.get(join.worker)
        if known is not None and known.identity == sender:
            return None
        if (reason := self._refusal(sender, join, others=len(self.everyone) - (known is not None))) is not None:
            return reason
        if known is not None:
            self.displaced.append(known)
            self.drop(known)
        if (before := self._newest.get(join.worker, sender)) != sender:
            self.replaced.add(before)
        self._newest[join.worker] = sender
        offered = Member(
            join.worker, sender, join.link_gbit, join.device, join.arithmetic, join.place, join.uplink_gbit
        )
        self._candidates[join.worker] = offered, monotonic()
        return None

    def _refusal(self, sender: bytes, join: Join, others: int) -> str | None:
        """Why a worker cannot join that many others; it then displaces nobody."""
        if join.worker in self._removed:
            return f"worker {join.worker!r} was removed from the run; give this one another --name"
        if sender in self.replaced:
            return displaced(join.worker)
        if others >= MOST_WORKERS:
            return f"{MOST_WORKERS} workers have joined, the most there can be; start it when another has left"
        if difference := differing(self._settings, "the dispatcher", join.settings, f"worker {join.worker!r}"):
            return difference
        if others and not self._may_sum:
            return str(unencrypted(others + 1))
        return None

    def has_confirmed(self, sender: bytes) -> bool:
        """Whether the worker with that socket is ready for a generation, or in one."""
        return any(member.identity == sender for member in self._ready.values())

    def confirm(self, sender: bytes) -> None:
        """Notes that the candidate with that socket is ready for the next generation."""
        for candidate, _ in tuple(self._candidates.values()):
            if candidate.identity == sender:
                del self._candidates[candidate.name]
                self._ready[candidate.name] = candidate
                self._leaving |= self.to_drain & {candidate.name}

    def drop_unconfirmed(self, heard: float) -> tuple[Member, ...]:
        """Drops and returns the candidates that have not confirmed in time. heard: when all messages had been read."""
        late = tuple(candidate for candidate, since in self._candidates.values() if since <= heard - CONFIRM_SECONDS)
        for candidate in late:
            self.drop(candidate)
        return late

    def start_over(self) -> tuple[Member, ...]:
        """Ends the generation early: everyone must confirm again; returns them."""
        everyone = self.everyone
        self._candidates = {member.name: (member, monotonic()) for member in everyone}
        self._ready.clear()
        self.members = ()
        return everyone

    def leave(self, sender: bytes, has_trained: bool) -> None:
        """A worker that has been in a generation leaves at the next one; one that waits for its
        first leaves at once.
        """
        for member in self.everyone:
            if member.identity == sender and (has_trained or member in self.members):
                self._leaving.add(member.name)
            elif member.identity == sender:
                self.drop(member)

    def drain(self, name: str) -> None:
        """Lets a worker leave at the next generation, as if it had asked to."""
        if any(member.name == name for member in self.everyone):
            self._leaving.add(name)

    def is_leaving(self, name: str) -> bool:
        return name in self._leaving

    def remove(self, name: str) -> Member | None:
        """Excludes workers of that name from the run; returns the one that was part of it."""
        self._removed.add(name)
        found = next((member for member in self.everyone if member.name == name), None)
        if found is not None:
            self.drop(found)
        return found

    def is_removed(self, name: str) -> bool:
        return name in self._removed

    def ban(self, names: Iterable[str]) -> None:
        """Excludes those who were removed before this dispatcher started."""
        self._removed.update(names)

    def drop(self, member: Member) -> None:
        self._candidates.pop(member.name, None)
        self._ready.pop(member.name, None)
        self._leaving.discard(member.name)

    def advance(self) -> tuple[Member, ...]:
        """Makes the wanted workers members; returns the members that are no longer wanted."""
        wanted = self.wanted
        able = self.able
        leaving = [member for name, member in self._ready.items() if name in self._leaving]
        gone = tuple(dict.fromkeys(member for member in (*self.members, *leaving) if member not in able))
        self.members = wanted
        return gone


def displaced(name: str) -> str:
    """The reason for a worker whose name a newer process has taken while it could not be reached."""
    return f"a newer worker named {name!r} has joined"


def by_number(name: str) -> tuple[str, int, str]:
    """Order of names: worker-2 comes before worker-10, as their links and bounds are listed."""
    stem = name.rstrip("0123456789")
    return stem, len(name[len(stem) :].lstrip("0")), name

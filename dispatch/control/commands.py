"""What an operator tells a running dispatcher: who may take part, whether to train, when to save.

A command has happened when it is in the journal, and not before. Its id is written down with it, so one that is sent
again, even to a dispatcher that was started anew, is answered and has no second effect. A pause lasts until somebody
ends it, whatever is restarted meanwhile.
"""

from collections.abc import Collection, Iterable

from dispatch.control.protocol import Accepted, Command, ListedMember, Members, MemberStanding
from dispatch.control.server import Asked, ControlSocket
from dispatch.cuts.state import Decided
from dispatch.errors import JournalFull
from dispatch.journal.history import History
from dispatch.journal.records import Commanded
from dispatch.journal.run import RunJournal
from dispatch.peers.crew import Crew
from dispatch.peers.roster import Member

KEPT_IDS = 10_000
"""of commands carried out that a cut names"""


class Commands:
    """Takes commands between two steps."""

    def __init__(self, socket: ControlSocket, crew: Crew, journal: RunJournal) -> None:
        self._socket, self._crew, self._journal = socket, crew, journal
        self._done: dict[str, str] = {}
        """what was answered, by id"""
        self.is_paused = False
        self.wants_cut = False
        """whether a cut was asked for and has not been begun"""
        self.has_removed = False
        """whether a worker was removed and no generation has started without it"""

    @property
    def ids(self) -> tuple[str, ...]:
        """Of those carried out, the newest last."""
        return tuple(self._done)[-KEPT_IDS:]

    def go_back(self, history: History, decided: Decided | None) -> None:
        """What is on record holds."""
        if decided is not None:
            self._done = dict.fromkeys(decided.commands, "carried out before") | self._done
            self.is_paused = decided.is_paused
        for command in history.commands:
            self._done[command.id] = command.text
            if command.verb in ("pause", "resume"):
                self.is_paused = command.verb == "pause"
        self._crew.roster.to_drain = history.draining

    def take(self, step: int, parked: Collection[str]) -> None:
        """Carries out the commands that have arrived; step: the newest."""
        while (asked := self._socket.next()) is not None:
            command: Command = asked.message
            if command.verb == "list":
                self._socket.answer(asked, self._members(command, parked))
            elif command.id in self._done:
                self._accept(asked, self._done[command.id])
            elif (problem := self._problem(command)) is not None:
                self._socket.refuse(asked, problem, self._crew.generation)
            else:
                self._carry_out(asked, command, step)

    def close(self) -> None:
        self._socket.close()

    def _carry_out(self, asked: Asked, command: Command, step: int) -> None:
        text = {
            "drain": f"worker {command.worker} leaves after step {step}",
            "remove": f"worker {command.worker} is removed; the others go back to the last cut",
            "pause": f"paused after step {step}",
            "resume": f"goes on after step {step}",
            "cut": f"a cut is taken after step {step}",
        }[command.verb]
        try:
            self._journal.command(Commanded(command.id, command.verb, command.worker, step, text))
        except JournalFull as error:
            self._socket.refuse(asked, f"the command cannot be written down: {error}", self._crew.generation)
            return
        self._done[command.id] = text
        match command.verb:
            case "drain":
                self._crew.roster.drain(command.worker)
            case "remove":
                self._crew.remove(command.worker)
                self.has_removed = True
            case "pause" | "resume":
                self.is_paused = command.verb == "pause"
            case "cut":
                self.wants_cut = True
        self._accept(asked, text)

    def _problem(self, command: Command) -> str | None:
        """Why a command cannot be carried out."""
        if command.verb not in ("drain", "remove"):
            return None
        names = [member.name for member in self._crew.roster.everyone]
        if command.worker not in names:
            return f"there is no worker {command.worker!r}; expected one of {', '.join(names) or 'none'}"
        staying = [name for name in names if name != command.worker and not self._crew.roster.is_leaving(name)]
        if not staying:
            return f"worker {command.worker!r} is the last one; expected another that stays; add one first"
        return None

    def _members(self, command: Command, parked: Collection[str]) -> Members:
        roster = self._crew.roster
        listed = tuple(self._listed(member, parked) for member in _each_once((*roster.members, *roster.everyone)))
        return Members(**self._crew.at(0), id=command.id, is_paused=self.is_paused, members=listed)

    def _listed(self, member: Member, parked: Collection[str]) -> ListedMember:
        roster = self._crew.roster
        number = roster.members.index(member) if member in roster.members else -1
        standing: MemberStanding = "training" if number >= 0 else "waiting"
        if roster.is_leaving(member.name):
            standing = "draining"
        elif member.name in self._crew.losses:
            standing = "lost"
        elif member.name in parked:
            standing = "parked"
        return ListedMember(name=member.name, state=standing, number=number, link_gbit=member.link_gbit)

    def _accept(self, asked: Asked, text: str) -> None:
        self._socket.answer(asked, Accepted(**self._crew.at(0), id=asked.message.id, text=text))


def _each_once(members: Iterable[Member]) -> list[Member]:
    return list({member.name: member for member in members}.values())

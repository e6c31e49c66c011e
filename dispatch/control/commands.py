"""What an operator tells a running dispatcher: who may take part, whether to train, how to decide.

A command has happened when it is in the journal, and not before. Its id is written down with it, so one that is sent
again, even to a dispatcher that was started anew, is answered as it was the first time and has no second effect. What
is set lasts until somebody sets it anew, whatever is restarted meanwhile (``dispatch/journal/desired.py``).
"""

import uuid
from collections.abc import Collection, Iterable
from time import time

from dispatch.checkpoints.state import Decided
from dispatch.control.checking import CommandCheck
from dispatch.control.protocol import Accepted, Command, ListedMember, Members, MemberStanding, Outdated, check_given
from dispatch.control.server import Asked, ControlSocket
from dispatch.errors import CommandRefused, JournalFull
from dispatch.journal.answers import CommandAnswer
from dispatch.journal.desired import AUTO, NONE, STOPPED, Desired, follow, follow_all
from dispatch.journal.history import History
from dispatch.journal.records import AlphaChanged, Commanded, GenerationStarted
from dispatch.journal.run import RunJournal
from dispatch.peers.crew import Crew
from dispatch.peers.roster import Member
from infra.base.faults import reach
from infra.base.process import Stop

KEPT_ANSWERS = 10_000
"""of commands carried out that a checkpoint has"""
STOPPING = "the run is stopping; expected one that goes on; resume it once it has stopped, and give the command anew"


class Commands:
    """Takes commands between two steps."""

    def __init__(self, socket: ControlSocket, crew: Crew, journal: RunJournal, check: CommandCheck, stop: Stop) -> None:
        self._socket = socket
        self._crew = crew
        self._journal = journal
        self._check = check
        self._stop = stop
        self._done: dict[str, CommandAnswer] = {}
        """what was answered, by id"""
        self.desired = Desired()
        """what people want of the run"""
        self.wants_checkpoint = False
        """whether a checkpoint was asked for and has not been begun"""
        self.has_removed = False
        """whether a worker was removed and no generation has started without it"""

    @property
    def answers(self) -> tuple[CommandAnswer, ...]:
        """To those carried out, the newest last."""
        return tuple(self._done.values())[-KEPT_ANSWERS:]

    def go_back(self, history: History, decided: Decided | None) -> None:
        """What is on record holds."""
        if decided is not None:
            self._done = {answer.id: answer for answer in decided.answers} | self._done
        self._done |= self._journal.answers
        self.desired = follow_all(Desired() if decided is None else decided.desired, history.steering)
        self._crew.roster.to_drain = frozenset(self.desired.draining)
        self._crew.roster.ban(self.desired.removed)

    def start_generation(self, started: GenerationStarted) -> None:
        """A generation has started: those who were to leave and have no part in it have left."""
        self.desired = follow(self.desired, started)

    def go_live(self) -> None:
        """The run decides new steps: a stop that is on record from before this dispatcher was started is due."""
        if self.desired.is_stopping:
            self._stop.request("stopped by a command")

    def adapt(self, change: AlphaChanged) -> bool:
        """The dispatcher itself changes alpha; False if that cannot be written down."""
        return self._write_down(change) is None

    def settle_stop(self, step: int) -> None:
        """The run ends with nothing to save: a stop that was asked for is done with."""
        if self.desired.is_stopping:
            text = "the run ended before it had anything to save"
            self._write_down(Commanded(uuid.uuid4().hex, STOPPED, "", step, text, at_seconds=time()))

    def carry_out_arrived(self, step: int, parked: Collection[str]) -> None:
        """Carries out the commands that have arrived; step: the newest."""
        while (asked := self._socket.next()) is not None:
            command: Command = asked.message
            if command.verb == "list":
                self._socket.answer(asked, self._members(command, parked))
            elif command.id in self._done:
                self._accept(asked, self._done[command.id])
            elif -1 < command.expected < self._journal.steered:
                outdated = Outdated(**self._crew.at(0), id=command.id, version=self._journal.version)
                self._socket.answer(asked, outdated)
            else:
                self._carry_out(asked, command, step)

    def close(self) -> None:
        self._socket.close()

    def _carry_out(self, asked: Asked, command: Command, step: int) -> None:
        reach("command_received", step)
        try:
            self._check_in_time(command)
            value = self._check.value(command, self.desired)
        except CommandRefused as refusal:
            self._socket.refuse(asked, str(refusal), self._crew.generation)
            return
        text = answer_to(command, value, step)
        if (
            problem := self._write_down(
                Commanded(
                    id=command.id,
                    verb=command.verb,
                    worker=command.worker,
                    step=step,
                    text=text,
                    value=value,
                    actor=command.actor,
                    reason=command.reason,
                    at_seconds=time(),
                )
            )
        ) is not None:
            self._socket.refuse(asked, f"the command cannot be written down: {problem}", self._crew.generation)
            return
        reach("command_journalled", step)
        self._done[command.id] = self._journal.answers[command.id]
        self._act(command)
        self._accept(asked, self._done[command.id])

    def _check_in_time(self, command: Command) -> None:
        """Raises CommandRefused if the command would first act when somebody resumes the run."""
        if self._stop.requested and command.verb != "stop":
            raise CommandRefused(STOPPING)
        check_given(command.given_seconds, self.desired.stopped_at)

    def _write_down(self, record: Commanded | AlphaChanged) -> str | None:
        """Returns why that is not possible now; None: it is on record, and wanted."""
        try:
            self._journal.steer(record)
        except JournalFull as error:
            return str(error)
        self.desired = follow(self.desired, record)
        return None

    def _act(self, command: Command) -> None:
        """What a command does at once; the rest follows from what is wanted."""
        match command.verb:
            case "drain":
                self._crew.roster.drain(command.worker)
            case "remove":
                self._crew.remove(command.worker)
                self.has_removed = True
            case "checkpoint":
                self.wants_checkpoint = True
            case "stop":
                self._stop.request(f"stopped by {command.actor}" if command.actor else "stopped by a command")

    def _members(self, command: Command, parked: Collection[str]) -> Members:
        roster = self._crew.roster
        listed = tuple(self._listed(member, parked) for member in _each_once((*roster.members, *roster.everyone)))
        return Members(**self._crew.at(0), id=command.id, is_paused=self.desired.is_paused, members=listed)

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
        link_gbit = self.desired.links.get(member.name, member.link_gbit)
        return ListedMember(name=member.name, state=standing, number=number, link_gbit=link_gbit)

    def _accept(self, asked: Asked, answer: CommandAnswer) -> None:
        told = Accepted(**self._crew.at(0), id=answer.id, text=answer.text, version=answer.version)
        self._socket.answer(asked, told)


def _each_once(members: Iterable[Member]) -> list[Member]:
    return list({member.name: member for member in members}.values())


def answer_to(command: Command, value: str, step: int) -> str:
    """What a command comes to, for people."""
    worker = command.worker
    since = f"from step {step + 1} on"
    alpha = "alpha follows contention" if value == AUTO else f"alpha is {value}"
    return {
        "drain": f"worker {worker} leaves after step {step}",
        "remove": f"worker {worker} is removed; the others go back to the last checkpoint",
        "pause": f"paused after step {step}",
        "resume": f"goes on after step {step}",
        "checkpoint": f"a checkpoint is taken after step {step}",
        "stop": f"stops after step {step}",
        "alpha": f"{alpha} {since}",
        "policy": f"policy {value} decides {since}",
        "deadline": f"decisions are {'' if value == 'true' else 'not '}cut short to be in time {since}",
        "skip_above": f"events are left out when more than {value} wait" if value != NONE else "no events are left out",
        "link": f"the link of worker {worker} counts as {value} Gbit/s {since}",
        "shares": f"worker {worker} gets {value} equal shares of a batch {since}",
    }[command.verb]

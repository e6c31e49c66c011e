"""Carries out an operator's commands to a running dispatcher, between two steps, each command once.

    1. read and check    2. record    3. apply to the desired state    4. act at once    5. answer

A command has happened when it is in the journal (2), and not before. Its id is recorded with it, so a command that is
sent again, even to a restarted dispatcher, gets the same answer as the first time and has no second effect. A crash
after 2 loses only what the command would have done at once; what it sets stays in force until somebody changes it,
across all restarts (``dispatch/journal/desired.py``).
"""

import uuid
from collections.abc import Collection
from time import time

from dispatch.checkpoints.state import Decided
from dispatch.commands.desired import Desired
from dispatch.commands.members import list_members
from dispatch.commands.protocol import Command, CommandAnswered, ListMembers, Outcome, check_given
from dispatch.commands.registry import read_command
from dispatch.commands.server import Asked, ControlSocket
from dispatch.commands.spec import CommandedRun, CommandOrigin, CommandSpec, CommandTargets
from dispatch.commands.stop import STOPPED
from dispatch.errors import CommandRefused, JournalUnwritable
from dispatch.job import DispatchJob
from dispatch.journal.answers import CommandAnswer
from dispatch.journal.desired import desired_after, desired_after_all
from dispatch.journal.history import History
from dispatch.journal.records import AlphaChanged, Commanded, GenerationStarted
from dispatch.journal.run import RunJournal
from dispatch.peers.crew import Crew
from infra.base.faults import reach
from infra.base.process import Stop
from infra.base.wire import truncate_reason

KEPT_ANSWERS = 10_000
"""Number of the newest answers that a checkpoint stores."""
STOPPING = "the run is stopping; expected one that goes on; resume it once it has stopped, and give the command anew"


class Commands:
    """Receives commands and carries them out between two steps."""

    def __init__(self, socket: ControlSocket, crew: Crew, journal: RunJournal, job: DispatchJob, stop: Stop) -> None:
        self._socket = socket
        self._crew = crew
        self._journal = journal
        self._job = job
        self._stop = stop
        self._done: dict[str, CommandAnswer] = {}
        """Answers to the commands that were carried out, by command id."""
        self.desired = Desired()
        """The desired state: what operators want of the run."""
        self.targets = CommandTargets(crew, stop)
        """The parts that commands act on, and their requests to the loop."""

    @property
    def answers(self) -> tuple[CommandAnswer, ...]:
        """Answers to the commands that were carried out, newest last."""
        return tuple(self._done.values())[-KEPT_ANSWERS:]

    def go_back(self, history: History, decided: Decided | None) -> None:
        """Rebuilds the desired state and the answers from a checkpoint and the journal."""
        if decided is not None:
            self._done = {answer.id: answer for answer in decided.answers} | self._done
        self._done |= self._journal.answers
        self.desired = desired_after_all(Desired() if decided is None else decided.desired, history.steering)
        self._crew.roster.to_drain = frozenset(self.desired.draining)
        self._crew.roster.ban(self.desired.removed)

    def start_generation(self, started: GenerationStarted) -> None:
        """Notes that a generation has started: workers that were to leave and are not in it have left."""
        self.desired = desired_after(self.desired, started)

    def go_live(self) -> None:
        """Carries out a stop that was recorded before this dispatcher started, now that the run decides new steps."""
        if self.desired.is_stopping:
            self._stop.request("stopped by a command")

    def adapt(self, change: AlphaChanged) -> bool:
        """Records that the dispatcher itself changes alpha; returns False if that cannot be recorded."""
        return self._write_down(change) is None

    def settle_stop(self, step: int) -> None:
        """Records that a requested stop is complete, when the run ends with nothing to save."""
        if self.desired.is_stopping:
            text = "the run ended before it had anything to save"
            self._write_down(Commanded(uuid.uuid4().hex, STOPPED, "", step, text, at_seconds=time()))

    def carry_out_arrived(self, step: int, parked: Collection[str]) -> None:
        """Carries out the commands that have arrived; step: the newest step; parked: workers without samples."""
        while (asked := self._socket.next()) is not None:
            if isinstance(asked.message, ListMembers):
                self._socket.answer(asked, list_members(self._crew, self.desired, parked))
            else:
                self._answer(asked, asked.message, step)

    def close(self) -> None:
        self._socket.close()

    def _answer(self, asked: Asked, command: Command, step: int) -> None:
        """Answers one command: with the earlier answer if it was carried out before, otherwise with its outcome now."""
        if (done := self._done.get(command.id)) is not None:
            self._reply(asked, "accepted", done.text, done.cursor)
        elif -1 < command.expected < self._journal.steered:
            self._reply(asked, "outdated", outdated(command.expected, self._journal.cursor), self._journal.cursor)
        else:
            try:
                done = self._carry_out(command, step)
            except CommandRefused as refusal:
                self._socket.refused.add(Command.__name__, asked.sender, str(refusal))
                self._reply(asked, "refused", str(refusal), self._journal.cursor)
            else:
                self._reply(asked, "accepted", done.text, done.cursor)

    def _carry_out(self, command: Command, step: int) -> CommandAnswer:
        """Carries out a command; if it raises CommandRefused, nothing has happened."""
        reach("command_received", step)
        spec = read_command(command.verb, command.worker, command.value)  # 1
        self._check_in_time(spec, command.given_seconds)
        spec.check(CommandedRun(self._job, self._crew.roster, self.desired))
        origin = CommandOrigin(command.actor, command.reason, at_seconds=time())
        problem = self._write_down(
            Commanded(
                id=command.id,
                verb=spec.name,
                worker=spec.about,
                step=step,
                text=spec.answer(step),
                value=str(spec),
                actor=origin.actor,
                reason=origin.reason,
                at_seconds=origin.at_seconds,
            )
        )  # 2, 3
        if problem is not None:
            raise CommandRefused(f"the command cannot be written down: {problem}")
        reach("command_journalled", step)
        self._done[command.id] = self._journal.answers[command.id]
        spec.act(self.targets, origin)  # 4
        return self._done[command.id]

    def _check_in_time(self, spec: CommandSpec, given_seconds: float) -> None:
        """Raises CommandRefused if the command would only take effect after somebody resumes the run."""
        if self._stop.requested and not spec.is_for_stopping:
            raise CommandRefused(STOPPING)
        check_given(given_seconds, self.desired.stopped_at)

    def _write_down(self, record: Commanded | AlphaChanged) -> str | None:
        """Records a change and applies it to the desired state; returns the reason if it cannot be recorded now."""
        try:
            self._journal.steer(record)
        except JournalUnwritable as error:
            return str(error)
        self.desired = desired_after(self.desired, record)
        return None

    def _reply(self, asked: Asked, outcome: Outcome, text: str, cursor: int) -> None:
        answered = CommandAnswered(
            **self._crew.at(0), id=asked.message.id, outcome=outcome, text=truncate_reason(text), cursor=cursor
        )
        self._socket.answer(asked, answered)  # 5


def outdated(expected: int, newest: int) -> str:
    """Returns why a command was not carried out: others came after the cursor at which it was given."""
    return (
        f"the command was given at cursor {expected} of the journal, and others came after it; expected cursor "
        f"{newest} or later; read the run again, and repeat the command with its cursor"
    )

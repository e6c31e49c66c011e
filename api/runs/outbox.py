"""Sends commands from the database to whoever carries them out, until they are answered, and records the answers.

    1. a request stores a command as pending  2. it is sent  3. it is in the journal  4. its answer is recorded here

The dispatcher carries out each id once, and answers a repetition from its journal. So if any process crashes after 2
or 3, sending the command again repairs it: no accepted command is lost, and none takes effect twice.

If a run was stopped in order or has ended, and no process works in its folder, commands to it are refused: they must
not surprise whoever resumes the run. Commands state when they were given, so one that was given before the run was
stopped is also refused by the process that resumes it. Commands to an interrupted run wait until it resumes.
"""

import asyncio
from typing import Any

import structlog

from api.runs.places import Place
from api.runs.projector import Projector
from api.store.rows import StoredCommand
from api.store.store import SqlStore
from dispatch.commands.client import ask, ask_members, give
from dispatch.commands.protocol import Command, CommandAnswered, ListedMember, Outcome
from dispatch.commands.supervision import ADD, AGENT, ListedProcess, ListProcesses, StartWorker, StopWorker
from dispatch.errors import CommandRefused, NoAnswer
from dispatch.journal.history import JOURNAL
from dispatch.journal.log import rest_of
from dispatch.journal.occupied import is_under_way
from infra.base.errors import FreshetError
from infra.base.faults import reach
from infra.base.link_gbit import LinkGbit
from infra.base.run_folder import CONTROL_WORD

STOPPED = (
    "is stopped; expected one that is under way; resume it by 'freshet up --run' or POST /v1/runs, and give the "
    "command anew"
)
OVER = "is over; expected one that is under way; start another"
"""The reasons for which a command to a stopped run, or to one that has ended, is refused."""
POLL_SECONDS = 1.0
PAUSE_SECONDS = 1.0
"""Pause after a failure."""
MOST_RECENT = 1000
ANSWER_SECONDS = 5.0
"""How long an answer may take before the command is sent again."""


class Outbox:
    """Delivers the commands of one run, one after the other."""

    def __init__(self, store: SqlStore, place: Place, projector: Projector) -> None:
        self._store = store
        self._place = place
        self._projector = projector
        self._wake = asyncio.Event()
        self._waiting: dict[str, asyncio.Event] = {}
        """Events by command id; each is set when its command has been answered."""
        self.pending = 0
        """Number of commands without an answer at the last check."""
        self._recent: dict[str, None] = {}
        """Ids of commands that were answered recently, oldest first."""

    def wake(self) -> None:
        """Notes that a command was stored."""
        self._wake.set()

    async def settled(self, command_id: str, seconds: float) -> bool:
        """Waits up to that many seconds for a command's answer; returns whether it has arrived."""
        if command_id in self._recent:
            return True
        event = self._waiting.setdefault(command_id, asyncio.Event())
        self.wake()
        try:
            await asyncio.wait_for(event.wait(), seconds)
        except TimeoutError:
            return False
        finally:
            self._waiting.pop(command_id, None)
        return True

    async def deliver(self) -> None:
        """Sends pending commands until it is cancelled."""
        while True:
            self._wake.clear()
            try:
                commands = await self._store.commands.pending(self._place.name)
                self.pending = len(commands)
                why = await self._at_rest() if commands else ""
                for command in commands:
                    await (self._record_answer(command, "refused", why) if why else self._send(command))
                    self.pending -= 1
                await asyncio.wait_for(self._wake.wait(), POLL_SECONDS)
            except TimeoutError:
                continue
            except (FreshetError, OSError) as error:
                structlog.get_logger().warning("commands wait", run=self._place.name, reason=str(error))
                await asyncio.sleep(PAUSE_SECONDS)

    async def _at_rest(self) -> str:
        """The reason why nobody will carry out a command; empty if somebody may, or may have done so.

        A reason is given only if the journal has been projected to its end: otherwise it may contain the command.
        """
        if await asyncio.to_thread(is_under_way, self._place.folder):
            return ""
        await self._projector.finish()
        stored = await self._store.runs.get(self._place.name)
        rest = await asyncio.to_thread(rest_of, self._place.folder / JOURNAL)
        if stored is None or rest is None or stored.cursor != rest.cursor:
            return ""
        return f"run {self._place.name!r} {OVER if stored.state == 'ended' else STOPPED}"

    async def _send(self, command: StoredCommand) -> None:
        """Sends a command and records its answer; raises NoAnswer if it is unknown whether it was carried out."""
        try:
            outcome, text, cursor = await asyncio.to_thread(self._carry_out, command)
            reach("command_answered")
            await self._record_answer(command, outcome, text, cursor)
        except CommandRefused as refused:
            await self._record_answer(command, "refused", str(refused))

    def _carry_out(self, command: StoredCommand) -> tuple[Outcome, str, int | None]:
        """The outcome, its text, and the cursor of the command if it is in the journal."""
        if command.verb == ADD:
            return "accepted", self._add_worker(command), None  # a worker is not in the journal until it joins
        answer = self._give(command)
        return answer.outcome, answer.text, answer.cursor if answer.outcome == "accepted" else None

    async def _record_answer(
        self, command: StoredCommand, outcome: Outcome, text: str, cursor: int | None = None
    ) -> None:
        """``cursor`` is that of the command in the journal."""
        await self._store.commands.record_answer(command.id, outcome, text, cursor)
        reach("command_settled")
        self._projector.hear(cursor or 0)
        structlog.get_logger().info("command settled", id=command.id, verb=command.verb, outcome=outcome, text=text)
        self._recent[command.id] = None
        if len(self._recent) > MOST_RECENT:
            del self._recent[next(iter(self._recent))]
        if (event := self._waiting.get(command.id)) is not None:
            event.set()

    def _give(self, command: StoredCommand) -> CommandAnswered:
        """Sends a command to the dispatcher; if that removed a worker, also stops the worker's process."""
        message = Command(
            **self._common(),
            id=command.id,
            verb=command.verb,
            worker=command.worker,
            value=command.value,
            actor=command.actor,
            reason=command.reason,
            expected=command.expected,
            given_seconds=command.created_at,
        )
        answer = give(self._control(), message, self._place.curve(), ANSWER_SECONDS)
        if command.verb == "remove" and answer.outcome == "accepted":
            self._stop_process(command.worker)
        return answer

    def _add_worker(self, command: StoredCommand) -> str:
        link = LinkGbit.parse(command.value or "0")
        links = {"link_gbit": link.down, "uplink_gbit": link.own_uplink}
        given: dict[str, Any] = {"id": command.id, "given_seconds": command.created_at, **links}
        message = StartWorker(**self._common(), worker=command.worker, **given)
        return f"worker {self._ask_agent(message).worker} is being started"

    def _stop_process(self, worker: str) -> None:
        """Ends the process of a worker that was removed, if its supervisor is known."""
        try:
            if worker in self.processes():
                self._ask_agent(StopWorker(**self._common(), worker=worker))
        except (NoAnswer, CommandRefused) as error:
            structlog.get_logger().warning("a removed worker is not stopped", worker=worker, reason=str(error))

    def processes(self) -> dict[str, ListedProcess]:
        """The processes of the run's supervisor, by name; empty if it has none."""
        if self._place.agent() is None:
            return {}
        return {listed.name: listed for listed in self._ask_agent(ListProcesses(**self._common())).processes}

    def members(self) -> dict[str, ListedMember]:
        """The state and link of each worker by name, as the dispatcher reports them; raises NoAnswer."""
        found = ask_members(self._control(), self._place.name, self._place.curve(), ANSWER_SECONDS)
        return {member.name: member for member in found.members}

    def _control(self) -> str:
        """The endpoint at which the dispatcher accepts commands; raises NoAnswer."""
        endpoint = self._place.endpoint(CONTROL_WORD)
        if endpoint is None:
            raise NoAnswer(f"the dispatcher of run {self._place.name!r} takes no commands now")
        return endpoint

    def _ask_agent(self, message: Any) -> Any:
        endpoint = self._place.agent()
        if endpoint is None:
            raise NoAnswer(f"the supervisor of run {self._place.name!r} is away")
        return ask(endpoint, message, AGENT, timeout_seconds=ANSWER_SECONDS)

    def _common(self) -> dict[str, Any]:
        return {"run": self._place.name, "generation": -1, "step": -1}

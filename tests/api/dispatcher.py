"""A dispatcher that trains nothing: real sockets, a real journal, and every command carried out by writing it down."""

import json
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import zmq

from dispatch.commands.desired import Desired
from dispatch.commands.protocol import Command, CommandAnswered, ListedMember, ListMembers, Members, Outcome
from dispatch.commands.registry import read_command
from dispatch.commands.server import ControlSocket
from dispatch.commands.spec import CommandedRun
from dispatch.errors import CommandRefused
from dispatch.feed.protocol import FEED
from dispatch.feed.server import FeedServer
from dispatch.journal.history import JOURNAL
from dispatch.journal.records import Commanded
from dispatch.journal.run import RunJournal
from dispatch.peers.roster import Roster
from dispatch.progress.status import AlphaMode, Status, WorkerStatus
from infra.base.wire import bind
from ingest.config import StreamConfig
from ingest.kafka.config import KafkaConfig
from tests.dispatch.journal.test_checkpoint_segments import step
from tests.dispatch.journal.test_run import begun_in, job_in

RUN = "r"
OTHER_WORKER = "nobody"
AT: dict[str, Any] = {"run": RUN, "generation": 1, "step": 0}


class PretendDispatcher:
    """One run in a folder, for as long as the context lasts.

    Refuses what is about worker nobody, and an alpha that its policy lacks.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.journal = RunJournal(job_in(folder))
        begun_in(self.journal)
        self.status = Status(run=RUN, policy="esd:1", state="training", workers=(WorkerStatus(name="worker-0"),))
        self.answers = threading.Event()
        """cleared: commands stay unread"""
        self.answers.set()
        self._job = job_in(folder)
        self._done: dict[str, CommandAnswered] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._control = ControlSocket(self._context, "tcp://127.0.0.1:*", RUN)
        feed = ControlSocket(self._context, "tcp://127.0.0.1:*", RUN, exchange=FEED)
        self._publisher = self._context.socket(zmq.PUB)
        self._publisher.set(zmq.LINGER, 0)
        published = bind(self._publisher, "tcp://127.0.0.1:*")
        self._feed = FeedServer(feed, self.journal)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        endpoints = ("tcp://127.0.0.1:1", published, self._control.endpoint, feed.endpoint)
        write_settings(folder)
        (folder / "endpoints").mkdir(exist_ok=True)
        (folder / "endpoints" / "dispatcher").write_text("\n".join(endpoints))
        (folder / "endpoints" / "dispatcher.metrics").write_text("http://127.0.0.1:9001/metrics")

    def __enter__(self) -> "PretendDispatcher":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._feed.close()
        self._control.close()
        self._publisher.close()
        self._context.term()
        self.journal.close()

    def train(self, first: int, last: int) -> None:
        """Puts steps on record."""
        for number in range(first, last + 1):
            self.journal.append_step(step(number))

    def _serve(self) -> None:
        while not self._stop.wait(0.02):
            self._publisher.send(msgspec.json.encode(self.status))
            while self.answers.is_set() and (asked := self._control.next()) is not None:
                if isinstance(asked.message, ListMembers):
                    listed = ListedMember(name="worker-0", state="training", number=0, link_gbit=0.25)
                    self._control.answer(asked, Members(**AT, is_paused=False, members=(listed,)))
                else:
                    self._control.answer(asked, self._answer(asked.message))

    def _answer(self, command: Command) -> CommandAnswered:
        if command.worker == OTHER_WORKER:
            return self._told(command, "refused", f"there is no worker {OTHER_WORKER!r}; expected one of worker-0")
        if command.id in self._done:
            return self._done[command.id]
        if -1 < command.expected < self.journal.steered:
            return self._told(command, "outdated", f"expected cursor {self.journal.cursor}")
        if (reason := self._reason_against(command)) is not None:
            return self._told(command, "refused", reason)
        return self._carry_out(command)

    def _told(self, command: Command, outcome: Outcome, text: str) -> CommandAnswered:
        return CommandAnswered(**AT, id=command.id, outcome=outcome, text=text, cursor=self.journal.cursor)

    def _reason_against(self, command: Command) -> str | None:
        """Why alpha cannot be that, as a dispatcher with this policy would say it; other settings are not checked."""
        try:
            if command.verb == "alpha":
                run = CommandedRun(self._job, Roster({}, may_sum=True), Desired(policy=self.status.policy))
                read_command(command.verb, command.worker, command.value).check(run)
        except CommandRefused as error:
            return str(error)
        return None

    def _carry_out(self, command: Command) -> CommandAnswered:
        text = f"{command.verb} {command.worker}{command.value} after step 0"
        told = command.id, command.verb, command.worker, 0, text, command.value, command.actor, command.reason
        self.journal.steer(Commanded(*told, at_seconds=1.0))
        self._done[command.id] = self._told(command, "accepted", text)
        if command.verb == "alpha":
            mode: AlphaMode = "auto" if command.value == "auto" else "manual"
            alpha = 1.0 if mode == "auto" else float(command.value)
            why: dict[str, Any] = {"alpha_reason": command.reason, "alpha_changed_at": 1.0}
            self.status = msgspec.structs.replace(self.status, alpha=alpha, alpha_mode=mode, **why)
        return self._done[command.id]


def write_settings(
    folder: Path, run: str = RUN, stream: StreamConfig | None = None, kafka: KafkaConfig | None = None
) -> None:
    """As much of a run's folder as the API looks at first; by default its events are in the embedded log."""
    stream = stream or StreamConfig(folder=folder / "topics", schema_name="movielens", partitions=2)
    settings = {
        "run": run,
        "curve_folder": None,
        "stream": stream.model_dump(mode="json"),
        "kafka": (kafka or KafkaConfig()).model_dump(mode="json"),
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / JOURNAL).mkdir(exist_ok=True)
